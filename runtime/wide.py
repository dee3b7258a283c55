"""The wide form of a decoder: a second graph over the same cache, its layers in int8, for steps of many tokens.

Which form reads a prompt is decided by what both cost on this device. That is measured when a prompt comes for the
first time that may gain, takes about as long as reading a few hundred tokens, and is kept in the cache folder.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edge.bundle import WEIGHTS
from edge.manifest import WIDE_VERSION
from edge.runtime.cache import KVCache
from edge.runtime.memory import release_mapped
from edge.runtime.providers import cpu
from edge.runtime.step import LAST_ROW, Bound, Step, paired

if TYPE_CHECKING:
    from edge.runtime.engine import Engine
    from edge.runtime.form_costs import FormCosts

LEAST = 32  # tokens of a prompt below which nothing is to be gained: neither measured nor opened for
SIZES = (4, 16, 64)  # tokens of the steps that are measured

_log = logging.getLogger(__name__)


class Wide:
    """The wide form beside an engine: what it costs, whether a prompt is read in it, and its steps."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._bundle = engine.bundle
        self._forgone = 0.0  # milliseconds that prompts would have been faster, had it been open

    @cached_property
    def session(self) -> ort.InferenceSession:
        """The session over the graph, opened when it is first used; the file's pages that it read are given back."""
        start = time.perf_counter()
        session = cpu.open_session(self._bundle, "wide")
        release_mapped(self._bundle.path(WEIGHTS))
        self._opening_ms = (time.perf_counter() - start) * 1e3
        return session

    @cached_property
    def _names(self) -> set[str]:
        return {value.name for value in self.session.get_inputs()}

    @property
    def opened(self) -> bool:
        return "session" in self.__dict__

    def least(self, tokens: int) -> int | None:
        """The fewest tokens of a step that a prompt of so many `tokens` is read in this form with; None: it is read in
        the narrow form.

        An open form is used where it is faster. One that is not is opened as soon as the prompts that came would have
        gained as much from it as opening costs, so that no more than that is ever lost.
        """
        if tokens < LEAST:
            return None
        costs = self.costs
        if costs.crossing is None or tokens < costs.crossing:
            return None
        if not self.opened:
            self._forgone += costs.saved(tokens)
            if self._forgone < costs.opening_ms:
                return None
        return costs.crossing

    @cached_property
    def costs(self) -> FormCosts:
        """What both forms cost here, as it was kept, or measured now."""
        from edge.runtime import form_costs

        return form_costs.load(self._bundle, self._engine.threads) or self.measure()

    def measure(self) -> FormCosts:
        """Measure what both forms cost, and keep it in the place of what was kept before."""
        from edge.runtime import form_costs

        _ = self.session
        sizes = [size for size in SIZES if size <= self._engine.context]
        cache = self._engine.new_cache(sizes[-1])

        def alone(step: Callable[[KVCache, NDArray[np.int64]], Any], tokens: NDArray[np.int64]) -> None:
            cache.reset()
            step(cache, tokens)

        pairs = [form_costs.fastest(partial(alone, self._engine.step), partial(alone, self.step), n) for n in sizes]
        found = form_costs.form_costs(sizes, [n for n, _ in pairs], [w for _, w in pairs], self._opening_ms)
        form_costs.keep(found, self._bundle, self._engine.threads)
        return found

    def step(
        self, cache: KVCache, tokens: NDArray[np.int64], rows: NDArray[np.int64] | None = None
    ) -> NDArray[np.float32]:
        """As `Engine.step`, without trees; the result is the caller's. Tokens and rows are run in even numbers, so that
        a row is the same, bit for bit, however a text is cut into steps, but for a last one that stands alone where the
        bundle's context ends; see `paired`."""
        rows = LAST_ROW if rows is None else rows
        size, wanted, vocab = tokens.shape[0], rows.shape[0], self._bundle.manifest.dims.vocab_size
        if not 1 <= size <= cache.room:
            raise ValueError(f"a step of {size} tokens on a cache with room for {cache.room}")
        tokens, rows = paired(tokens, rows, self._bundle.manifest.context - cache.length)
        made = np.empty((1, rows.shape[0], vocab), np.float32)
        step = Step(Bound(self.session, self._names, cache, tokens.shape[0]), tokens.shape[0], made)
        step.fill(tokens, cache.length, rows, None)
        step.run(cache, None)
        cache.length -= tokens.shape[0] - size
        found: NDArray[np.float32] = step.made[0, :wanted]
        return found


def wide_form(engine: Engine) -> Wide | None:
    """The wide form of the engine's bundle; None where it has none that can be used, and why is logged, or where
    answers are to be reproducible: those must not depend on what was measured."""
    form, plan = engine.bundle.manifest.wide, engine.plan
    if form is None or engine.reproducible:
        return None
    name = engine.bundle.manifest.name
    if not form.known:
        _log.warning(
            f"The wide form of {name} is {form.weights} of version {form.version}, and this edge reads int8 of version "
            f"{WIDE_VERSION}: prompts are read without it, more slowly; upgrade edge, or export the model again."
        )
        return None
    if plan is not None and not plan.demand.wide:
        _log.warning(
            f"The memory limit has no room for the wide form of {name}: prompts are read without it, more slowly."
        )
        return None
    return Wide(engine)
