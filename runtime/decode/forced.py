"""Forced tokens: where a form leaves one token alone, the step that runs it need not wait for its logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edge.manifest import FLOAT32, KV8_STEP
from edge.runtime.decode.draft import Draft
from edge.runtime.decode.grammar import Constrained
from edge.runtime.decode.loop import Choose, Drafts, Step
from edge.runtime.decode.sampling import Sampler
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.engine import Engine

if TYPE_CHECKING:
    from edge.runtime.decode.answer import Timings

WIDTH = 16  # tokens of a step up to which engines whose rows depend on each other give the same


class Forced(Drafts):
    """The forced tokens of one answer, and after them what another drafter guesses and the form allows.

    They are those of the masks that the sampler chooses with, one by one, so that an answer is the same with and
    without. Their rows of logits are not computed.

    drafts: of the other drafter. chunk: maximum tokens of a step. timings: what is counted in.
    """

    def __init__(self, drafts: Drafts, chunk: int, timings: Timings) -> None:
        self._drafts, self._chunk, self._timings = drafts, chunk, timings
        self._form: Constrained | None = None
        self._forced = 0

    @contextmanager
    def over(self, engine: Engine, cache: KVCache, sampler: Sampler, last: int) -> Iterator[tuple[Step, Choose]]:
        self._engine, self._cache = engine, cache
        self._form = sampler if isinstance(sampler, Constrained) else None
        self._most = self._chunk
        if not engine.independent:
            self._most = min(self._chunk, WIDTH if engine.kv.dtype == FLOAT32 else KV8_STEP) if cache.exact else 1
        with self._drafts.over(engine, cache, sampler, last) as given:
            yield given

    def propose(self, forced: Sequence[int] = (), allowed: Callable[[Sequence[int]], int] = len) -> Draft:
        form = self._form
        if form is None:
            return self._drafts.propose()
        forced = form.force(min(self._most, self._engine.max_exact_step(self._cache)) - 1)
        self._forced = len(forced)
        self._timings.forced_tokens += self._forced
        draft = self._drafts.propose(forced, form.allowed)
        return Draft([*forced, *draft.tokens], draft.grades, self._forced) if forced else draft

    def accept(self, tokens: NDArray[np.int64], rows: NDArray[Any], sampled: Sequence[int]) -> None:
        forced, self._forced = self._forced, 0
        self._drafts.accept(tokens[forced:], rows, sampled[forced:])
