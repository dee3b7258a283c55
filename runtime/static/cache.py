"""The KV cache of graphs of fixed sizes: integers as the device makes them, keys as columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edge.manifest import KVLayer
from edge.runtime.engine.cache import KVCache


class StaticCache(KVCache):
    """See `KVCache`. Keys are [1, heads, head_dim, rows] and values [1, heads, rows, head_dim]; the graphs read all
    rows in place, and the host writes new ones. Every cache has as many rows as the graphs were made for."""

    def shapes(self, layer: KVLayer) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (1, layer.heads, layer.head_dim, self.rows), (1, layer.heads, self.rows, layer.head_dim)

    def write(self, new: Sequence[tuple[NDArray[np.generic], NDArray[np.generic]]], count: int) -> None:
        """Append the first `count` rows of new keys and values [1, S, heads, head_dim], of every layer."""
        start, end = self.length, self.length + count
        for (key, value), (new_key, new_value) in zip(self.buffers, new, strict=True):
            key[..., start:end] = new_key[:, :count].transpose(0, 2, 3, 1)
            value[:, :, start:end] = new_value[:, :count].transpose(0, 2, 1, 3)
        self.length = end

    def compact(self, rows: Sequence[int] | NDArray[np.intp]) -> None:
        keep = np.asarray(rows, np.intp)
        for key, value in self.buffers:
            key[..., : len(keep)] = key[..., keep]
            value[:, :, : len(keep)] = value[:, :, keep]
        self.positions[: len(keep)] = self.positions[keep]
        self.contiguous = False
        self.length = len(keep)
