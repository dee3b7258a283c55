"""The KV cache of graphs of fixed sizes: integers as the device makes them, keys as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.manifest import KVLayer, KVLayout
from edge.runtime.engine.cache import KVCache, repeat_rows
from edge.runtime.engine.encoder import Cross
from edge.runtime.providers.provider import Buffer, Provider


class FixedCache(KVCache):
    """See `KVCache`. Keys are [1, heads, head_dim, rows] and values [1, heads, rows, head_dim]; the graphs read all
    rows in place, and the host writes new ones.

    contexts: numbers of rows that graphs were made for, fewest first. A cache begins with the fewest, because each step
    reads all of them, and moves to more when a step does not fit. bound: graphs that read its memory, by the sizes of
    their steps.
    """

    def __init__(
        self, provider: Provider, layout: KVLayout, contexts: Sequence[int], capacity: int, cross: Cross | None
    ) -> None:
        super().__init__(provider, layout, contexts[0], cross)
        self.capacity = self.ends = capacity
        self._contexts = contexts
        self.bound: dict[int, Any] = {}

    def shapes(self, layer: KVLayer) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (1, layer.heads, layer.head_dim, self.rows), (1, layer.heads, self.rows, layer.head_dim)

    def fit(self, upto: int) -> None:
        rows = next(rows for rows in self._contexts if rows >= min(upto, self.capacity))
        if rows == self.rows:
            return
        kept = min(self.length, rows, self.rows)

        def moved(buffer: Buffer, axis: int) -> Buffer:
            shape = list(buffer.array.shape)
            shape[axis] = rows
            made = self.provider.allocate(tuple(shape), buffer.array.dtype)
            made.array.swapaxes(0, axis)[:kept] = buffer.array.swapaxes(0, axis)[:kept]
            return made

        self.memory = [(moved(key, 3), moved(value, 2)) for key, value in self.memory]
        positions = np.arange(rows, dtype=np.int64)
        positions[:kept] = self.positions[:kept]
        self.rows, self.positions, self.bound = rows, positions, {}

    def repeat(self, written: int, upto: int) -> None:
        for key, value in self.buffers:
            for rows in (key.swapaxes(2, 3), value):
                repeat_rows(rows, min(written, self.rows), min(upto, self.rows))

    def _part(self, start: int, end: int) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        return [(key[..., start:end], value[:, :, start:end]) for key, value in self.buffers]

    def write(self, new: Sequence[tuple[NDArray[np.generic], NDArray[np.generic]]], count: int) -> None:
        """Append the first `count` rows of new keys and values [1, S, heads, head_dim], of every layer."""
        start, end = self.length, self.length + count
        for (key, value), (new_key, new_value) in zip(self.buffers, new, strict=True):
            key[..., start:end] = new_key[:, :count].transpose(0, 2, 3, 1)
            value[:, :, start:end] = new_value[:, :count].transpose(0, 2, 1, 3)
        self.length = end

    def copy_rows(self, rows: Sequence[int] | NDArray[np.intp]) -> None:
        keep = np.asarray(rows, np.intp)
        for key, value in self.buffers:
            key[..., : len(keep)] = key[..., keep]
            value[:, :, : len(keep)] = value[:, :, keep]
        self.positions[: len(keep)] = self.positions[keep]
        self.contiguous = False
        self.length = len(keep)
