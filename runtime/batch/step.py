"""A step of several sequences, a token of each: one row of every product for each of them, attention each by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.runtime.engine.cache import KVCache, Seat
from edge.runtime.engine.candidates import candidates_of
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.failures import FAILURES, failed
from edge.runtime.engine.route import NO_LIMIT, Route
from edge.runtime.engine.want import CANDIDATES, LOGITS, TOKENS, Want
from edge.runtime.kernels.units import LIMITS, ROUTE, of_all
from edge.runtime.providers.base import Buffer


class Slots:
    """Memory for the keys and values of up to `width` sequences, each in a slice of the same buffers, shaped as in the
    cache `like`."""

    def __init__(self, like: KVCache, width: int) -> None:
        self.width, self._provider = width, like.provider
        self.memory = [(self._several(key), self._several(value)) for key, value in like.memory]
        self._seats = [Seat() for _ in range(width)]

    def _several(self, like: Buffer) -> Buffer:
        """Memory for all sequences of a buffer [1, heads, rows, head_dim]."""
        return self._provider.allocate((self.width, *like.shape[1:]), like.dtype)

    def first(self, buffer: Buffer, size: int, slot: int = 0) -> Buffer:
        """The part of a buffer for `size` sequences, from that of `slot` on."""
        one = buffer.shape[1:]
        return self._provider.part(buffer, (size, *one), slot * math.prod(one))

    def give(self, cache: KVCache, slot: int) -> None:
        """Let a cache keep its rows in a slot, from now on."""
        memory = [(self.first(key, 1, slot), self.first(value, 1, slot)) for key, value in self.memory]
        cache.sit(memory, self._seats[slot])

    def move(self, cache: KVCache, slot: int) -> None:
        """Take a cache's rows to another slot."""
        before, rows = cache.memory, cache.length  # a layer that tokens skipped has fewer
        self.give(cache, slot)
        for old, new in zip(before, cache.memory, strict=True):
            for source, target in zip(old, new, strict=True):
                self._provider.copy(source, target, rows)


class BatchStep:
    """A step of up to `size` sequences, in the first slots. units: of the engine's graph, 1 for the whole decoder.
    by_row: whether each sequence may run through other units."""

    def __init__(self, engine: Engine, slots: Slots, size: int, units: int, want: Want = LOGITS) -> None:
        provider, vocab = engine.provider, engine.bundle.manifest.dims.vocab_size
        tokens, positions = provider.allocate((size, 1), np.int64), provider.allocate((size, 1), np.int64)
        last, total = provider.allocate((units, size), np.int32), provider.allocate((units,), np.int32)
        self.by_row = ROUTE in engine.session.inputs
        runs = provider.allocate((units, size if self.by_row else 1), np.bool_)
        limits = provider.allocate(runs.shape, np.float32)
        shape, dtype = ((size, 1), np.int64) if want == TOKENS else ((size, 1, vocab), np.float32)
        self._want, self._result, self._engine = want, provider.allocate(shape, dtype), engine
        self._tokens, self._positions = tokens.array, positions.array
        self._held = np.zeros((units, size), np.int32)  # rows of each sequence in a unit, after the step
        self._last, self._total, self._runs = last.array, total.array, runs.array
        self._limits = limits.array
        self._limits[:] = NO_LIMIT
        if want != CANDIDATES:
            self._made = self._result.array
        given = {"input_ids": tokens, "position_ids": positions}
        given["tokens" if want == TOKENS else "logits"] = self._result
        given["logit_rows"] = provider.allocate((1,), np.int64)
        given |= {ROUTE: runs, LIMITS: limits, of_all("seqlens_k"): last, of_all("total_sequence_length"): total}
        for u in range(units):
            own = {"seqlens_k": provider.part(last, (size,), u * size)}
            own |= {"total_sequence_length": provider.part(total, (), u)}
            own |= {} if self.by_row else {"run": provider.part(runs, (), u)}
            given |= own | {f"{name}.{u}": buffer for name, buffer in own.items()}
        for i, pair in enumerate(slots.memory):
            for part, buffer in zip(("key", "value"), pair, strict=True):
                given |= {f"{name}.{i}.{part}": slots.first(buffer, size) for name in ("past", "present")}
        session = engine.session
        self._bound = session.bind()
        try:
            for name in session.inputs:
                self._bound.input(name, given[name])
            for name in session.outputs & given.keys():
                self._bound.output(name, given[name])
        except FAILURES as e:
            raise failed(engine.bundle, e) from e

    def run(
        self,
        caches: Sequence[KVCache],
        tokens: Sequence[int],
        routes: Sequence[Route],
        limits: Sequence[NDArray[np.float32] | None] = (),
    ) -> Any:
        """Append a token to each of the caches, which are in the first slots, through the units of its route; logits
        [B, V] or what else was asked for of each, overwritten by the next step. The results of other slots are not
        used. Where the graph has one route for all, they are the same. limits: by what each leaves out units of its
        route, [U], where the graph reads that."""
        self._engine.check_open()
        count = len(caches)
        self._tokens[:count, 0] = tokens
        self._positions[:count, 0] = [cache.length for cache in caches]
        self._positions[count:] = 0
        self._held[:, count:] = 1
        self._runs[:] = False
        for i, (cache, route) in enumerate(zip(caches, routes, strict=True)):
            self._held[:, i] = cache.grow(self._positions[i], route)
            self._runs[list(route), i if self.by_row else 0] = True
        if limits:
            self._limits[:] = NO_LIMIT
            for i, own in enumerate(limits):
                self._limits[:, i] = NO_LIMIT if own is None else own
        self._runs[:, count:] = self._runs[:, :1]
        np.subtract(self._held, 1, out=self._last)
        self._held.max(axis=1, out=self._total)
        if caches[0].total is not None:
            self._total[:] = caches[0].total
        try:
            self._bound.run()
        except FAILURES as e:
            raise failed(self._engine.bundle, e) from e
        if self._want == CANDIDATES:
            return candidates_of(self._engine.provider, self._result)[:count]
        return self._made[:count, 0]
