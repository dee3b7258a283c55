"""Steps of several texts, a token of each: every product has a row for each, and attention runs each by itself. Where
the engine mixes, the last text may have several."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from edge.runtime.engine.binding import CacheBinding
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.candidates import candidates_of
from edge.runtime.engine.graphs.kept_steps import check_tokens
from edge.runtime.engine.route import NO_LIMIT, Route
from edge.runtime.engine.slots import Slots
from edge.runtime.engine.want import CANDIDATES, LOGITS, TOKENS, Want
from edge.runtime.kernels.units import LIMITS, ROUTE, of_all
from edge.runtime.providers.provider import Buffer, Session

ALL: Route = (0,)  # of a graph of all layers, which is one unit

RowRoute = tuple[Route, NDArray[np.float32] | None]
"""The units that a text's next token runs through, and the limits [U] by which it leaves out some of them itself."""


class BatchSteps:
    """Runs several texts in the session that runs each alone. Steps are stored for the next one of their size.

    vocab: tokens of the model. units: of the graph.
    """

    def __init__(self, session: Session, vocab: int, units: int = 1) -> None:
        self._session, self._vocab, self._units = session, vocab, units
        self._steps: WeakKeyDictionary[Slots, dict[tuple[int, Want], BatchStep]] = WeakKeyDictionary()
        self._mixed: WeakKeyDictionary[Slots, dict[int, MixedStep]] = WeakKeyDictionary()
        self._logits: WeakKeyDictionary[Slots, Buffer] = WeakKeyDictionary()

    def _result(self, slots: Slots, want: Want, texts: int) -> Buffer:
        """Memory for the result of a step of so many texts [B, ...]. Steps of all sizes share that of logits."""
        if want == TOKENS:
            return slots.provider.allocate((texts, 1), np.int64)
        logits = self._logits.get(slots)
        if logits is None:
            logits = self._logits[slots] = slots.provider.allocate((slots.width, 1, self._vocab), np.float32)
        return slots.provider.part(logits, (texts, 1, self._vocab))

    def row_route(self, cache: KVCache) -> RowRoute:
        """Return what the next token of a text runs through."""
        return ALL, None

    def run(self, slots: Slots, tokens: NDArray[np.int64], want: Want) -> Any:
        """Append `tokens` [B] to the first B texts in the slots: see `Engine.step_all`."""
        caches = slots.caches[: len(tokens)]
        size = slots.size if len(caches) == len(slots.caches) else len(caches)
        steps, shape = self._steps.setdefault(slots, {}), (size, want)
        step = steps.get(shape)
        if step is None:
            result = self._result(slots, want, size)
            step = steps[shape] = BatchStep(self._session, slots, self._vocab, self._units, want, result)
        return step.run(caches, tokens, [self.row_route(cache) for cache in caches])

    def run_mixed(self, slots: Slots, tokens: NDArray[np.int64], piece: NDArray[np.int64]) -> NDArray[np.float32]:
        """Append `tokens` [B - 1] to the texts in the slots but the last one, and `piece` [P] to that: see
        `Engine.step_all`."""
        steps, size = self._mixed.setdefault(slots, {}), slots.size
        step = steps.get(size)
        if step is None:
            step = steps[size] = MixedStep(self._session, slots, self._result(slots, LOGITS, size))
        return step.run(slots.caches, tokens, piece)


class BatchStep(CacheBinding):
    """A step of the first slots, bound to their memory: of as many as there is memory for results."""

    def __init__(self, session: Session, slots: Slots, vocab: int, units: int, want: Want, result: Buffer) -> None:
        super().__init__(session)
        provider, size = slots.provider, result.shape[0]
        self._provider, self._want, self._vocab = provider, want, vocab
        tokens, positions = provider.allocate((size, 1), np.int64), provider.allocate((size, 1), np.int64)
        last, total = provider.allocate((units, size), np.int32), provider.allocate((units,), np.int32)
        self._by_row = ROUTE in session.inputs  # whether each text may run through units of its own
        runs = provider.allocate((units, size if self._by_row else 1), np.bool_)
        limits = provider.allocate(runs.shape, np.float32)
        self._result = result
        self._tokens, self._positions = tokens.array, positions.array
        self._held = np.zeros((units, size), np.int32)  # rows of each text in a unit, after the step
        self._last, self._total, self._runs, self._limits = last.array, total.array, runs.array, limits.array
        self.share({"input_ids": tokens, "position_ids": positions, "logit_rows": provider.allocate((1,), np.int64)})
        self.share({ROUTE: runs, LIMITS: limits, of_all("seqlens_k"): last, of_all("total_sequence_length"): total})
        for u in range(units):
            own = {"seqlens_k": provider.part(last, (size,), u * size)}
            own |= {"total_sequence_length": provider.part(total, (), u)}
            own |= {} if self._by_row else {"run": provider.part(runs, (), u)}
            self.share(own | {f"{name}.{u}": buffer for name, buffer in own.items()})
        memory, states = slots.part(size)
        self.keep(memory)
        self.keep_states(states)
        self._bound.output("tokens" if want == TOKENS else LOGITS, self._result)

    def run(self, caches: list[KVCache], tokens: NDArray[np.int64], routes: list[RowRoute]) -> Any:
        """Append a token to each of the caches; what is wanted of each, overwritten by the next step. What a slot
        without a text has is not used."""
        assert self._by_row or len({route for route, _ in routes}) == 1, "this graph has one route for all texts"
        count = len(caches)
        self._tokens[:count, 0] = tokens
        self._positions[:count, 0] = [cache.length for cache in caches]
        self._positions[count:] = 0
        self._held[:, count:] = 1
        self._runs[:] = False
        self._limits[:] = NO_LIMIT
        for i, (cache, (route, limits)) in enumerate(zip(caches, routes, strict=True)):
            self._held[:, i] = cache.grow(self._positions[i], route)
            self._runs[list(route), i if self._by_row else 0] = True
            if limits is not None:
                self._limits[:, i] = limits
        self._runs[:, count:] = self._runs[:, :1]
        np.subtract(self._held, 1, out=self._last)
        self._held.max(axis=1, out=self._total)
        if caches[0].total is not None:
            self._total[:] = caches[0].total
        self._bound.run()
        if self._want == CANDIDATES:
            return candidates_of(self._provider, self._result)[:count]
        made = self._result.array[:count, 0]
        if self._want == TOKENS:
            check_tokens(made, None, self._vocab, whole=False)
        return made


class MixedStep(CacheBinding):
    """A step of all slots that the texts take at present, bound to their memory: a row of tokens, one of each text and
    then all others of the last one."""

    def __init__(self, session: Session, slots: Slots, result: Buffer) -> None:
        super().__init__(session)
        assert slots.size == len(slots.caches), "every slot has a text where rows are independent"
        provider, texts = slots.provider, slots.size
        self._provider = provider
        last, total = provider.allocate((texts,), np.int32), provider.allocate((), np.int32)
        rows, self._result = provider.allocate((texts,), np.int64), provider.part(result, (1, *result.shape[::2]))
        self._last, self._total, self._rows = last.array, total.array, rows.array
        self.share({"seqlens_k": last, "total_sequence_length": total, "logit_rows": rows})
        self.keep(slots.part(texts)[0])
        self._bound.output(LOGITS, self._result)

    def run(self, caches: list[KVCache], tokens: NDArray[np.int64], piece: NDArray[np.int64]) -> NDArray[np.float32]:
        """Append a token to each of the caches but the last one, and a piece to that; logits [B, V] of what follows,
        overwritten by the next step."""
        *growing, read = caches
        size = len(growing) + len(piece)
        given, places = (self._provider.allocate((1, size), np.int64) for _ in range(2))
        given.array[0] = [*tokens, *piece]
        places.array[0] = [*(cache.length for cache in growing), *range(read.length, read.length + len(piece))]
        for i, cache in enumerate(growing):
            self._last[i] = cache.grow(places.array[0, i : i + 1], ALL)
        read.positions[read.length : read.length + len(piece)] = places.array[0, len(growing) :]
        read.length += len(piece)
        self._last[-1] = read.length
        self._total[...] = caches[0].total or self._last.max()
        self._last -= 1
        self._rows[:] = [*range(len(growing)), size - 1]
        self.share({"input_ids": given, "position_ids": places})
        try:
            self._bound.run()
        except Exception:  # another step may be right without the piece
            for cache, place in zip(growing, places.array[0], strict=False):
                cache.length = int(place)
            read.length -= len(piece)
            raise
        made: NDArray[np.float32] = self._result.array[0]
        return made
