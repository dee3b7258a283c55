"""An engine whose logits are any function of the tokens that a step's row attends to, in order.

It keeps what `Engine` promises for trees over a real `KVCache`: what the attention bias admits is a row's past, so that
a wrong bias, position or compaction shows in the logits.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from edge.manifest import KVLayer, KVLayout
from edge.runtime.cache import KVCache
from edge.runtime.engine import BLOCKED, Tree

LAYOUT = KVLayout("float32", [KVLayer(1, 1)])


class PathEngine:
    """`next_logits` gives the logits [V] of what follows a path of tokens; each path is asked for once."""

    takes_trees = True
    exact = False
    plan = None
    costs = None
    wide = None
    chooses = False
    kv = LAYOUT

    def __init__(self, next_logits: Callable[[tuple[int, ...]], np.ndarray], context: int = 1000) -> None:
        self.bundle = SimpleNamespace(manifest=SimpleNamespace(kv=LAYOUT))
        self.context = context
        self.steps: list[int] = []  # the number of tokens of each
        self.longest = 0  # most rows that a cache held
        self._next_logits = next_logits
        self._known: dict[tuple[int, ...], np.ndarray] = {}

    def new_cache(self, capacity: int | None = None, cross: object = None) -> KVCache:
        return KVCache(LAYOUT, capacity or self.context)

    def steady(self, cache: KVCache) -> int:
        return cache.room

    def make_cache(self, rows: int, cross: object = None) -> KVCache:
        return KVCache(LAYOUT, rows, cross)  # type: ignore[arg-type]

    def step(
        self, cache: KVCache, tokens: np.ndarray, rows: np.ndarray | None = None, *, tree: Tree | None = None
    ) -> np.ndarray:
        size, start = len(tokens), cache.length
        end = start + size
        assert tokens.dtype == np.int64 and 1 <= size <= cache.room
        stored = cache.buffers[0][0][0, 0, :, 0]  # a key is the token it stands for: compaction moves both
        stored[start:end] = tokens
        if tree is None:
            tree = Tree(np.arange(start, end), np.triu(np.full((size, end), BLOCKED), start + 1))
        assert tree.positions.shape == (size,) and tree.bias.shape == (size, end)
        assert set(np.unique(tree.bias)) <= {0, BLOCKED}
        cache.positions[start:end] = tree.positions
        self.steps.append(size)
        self.longest = max(self.longest, end)
        paths = []
        for i in range(size):
            past = np.flatnonzero(tree.bias[i] == 0)
            assert past[-1] == start + i, "a token attends to itself and to nothing behind it"
            assert cache.positions[past].tolist() == list(range(len(past))), "a path has each position once"
            paths.append(tuple(stored[past].astype(int).tolist()))
        cache.length = end
        wanted = [size - 1] if rows is None else rows
        return np.stack([self._logits(paths[i]) for i in wanted])

    def _logits(self, path: tuple[int, ...]) -> np.ndarray:
        if path not in self._known:
            self._known[path] = np.asarray(self._next_logits(path), np.float32)
        return self._known[path]


def hashed(vocab: int, eos: int | None, seed: int = 0, patience: int = 12) -> Callable[[tuple[int, ...]], np.ndarray]:
    """A model of random logits that depend on every token of the path and its place; it ends after a while, if ever."""

    def next_logits(path: tuple[int, ...]) -> np.ndarray:
        logits = np.random.default_rng([seed, *path]).standard_normal(vocab) * 3
        if eos is not None:
            logits[eos] += (len(path) - patience) / 4
        return logits.astype(np.float32)

    return next_logits
