"""Branches of one text in one KV cache: rows that they share are kept once, an attention bias separates them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.tree import BLOCKED, Tree
from edge.runtime.engine.want import Ranked

Made = NDArray[np.float32] | Ranked
"""What a step has of each branch: logits [S, V], or the likeliest tokens."""

# Dead rows that are not worth moving the others for: attention over one of them costs 0.26 us a step, moving
# rows 25 to 60 us (a T5 of 4 layers).
SPARE_ROWS = 32


class Branches:
    """The branches that grow from what a cache holds; all of them have the same length.

    The first rows of the cache belong to all branches. Each step adds one token to each branch; a branch may be
    continued in several ways, or in none, which is its end. Rows of dead branches stay until there are enough to move
    the others for. run: `Engine.step`. cache: has at least one row. width: maximum branches at a time.
    """

    def __init__(self, run: Callable[..., Made], cache: KVCache, width: int) -> None:
        cache.branch(width)
        self._run = run
        self._cache = cache
        self._bias = np.empty((width, cache.capacity), np.float32)  # what the newest row of each branch attends to
        self._bias[0, : cache.length] = 0
        self._position = cache.length  # of the next tokens
        self._live = cache.length  # rows that some branch attended to when they were last counted
        self._rows = np.arange(width, dtype=np.int64)
        self._own = np.where(np.eye(width, dtype=bool), np.float32(0), BLOCKED)  # of a step's tokens: itself alone

    def step(self, parents: NDArray[np.intp], tokens: NDArray[np.int64]) -> Made | None:
        """Continue the branches `parents` [S] with `tokens` [S], which makes S branches in this order; what is made
        of them, None where the cache has no room, even without the rows of dead branches."""
        cache, size = self._cache, len(tokens)
        attended = self._bias[parents, : cache.length]  # [S, rows]
        if cache.room < size or cache.length - self._live > SPARE_ROWS:
            rows = np.flatnonzero(attended.max(axis=0) == 0)
            self._live = len(rows)
            if cache.room < size or cache.length - self._live > SPARE_ROWS:
                cache.copy_rows(rows)
                attended = attended[:, rows]
            if cache.room < size:
                return None
        if cache.states is not None:
            cache.states.copy_rows(parents)
        length, total = cache.length, cache.length + size
        bias = self._bias[:size, :total]
        bias[:, :length] = attended
        bias[:, length:] = self._own[:size, :size]
        positions = np.full(size, self._position, np.int64)
        self._position += 1
        return self._run(cache, tokens, self._rows[:size], tree=Tree(positions, bias))
