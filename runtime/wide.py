"""The wide form of a decoder: a second graph over the same cache, its layers in int8, for steps of many tokens."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import TYPE_CHECKING

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
    from edge.bundle import Bundle
    from edge.runtime.engine import Engine

_log = logging.getLogger(__name__)


class Wide:
    """The wide form of a bundle next to an engine over its narrow one: steps over the same caches."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle

    @cached_property
    def session(self) -> ort.InferenceSession:
        """The session over the graph, opened by the first prompt that is long enough (`edge.runtime.generate`)."""
        session = cpu.open_session(self._bundle, "wide")
        release_mapped(self._bundle.path(WEIGHTS))
        return session

    @cached_property
    def _names(self) -> set[str]:
        return {value.name for value in self.session.get_inputs()}

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
    """The wide form of the engine's bundle; None where it has none that can be used, and why is logged."""
    form, plan = engine.bundle.manifest.wide, engine.plan
    if form is None:
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
    return Wide(engine.bundle)
