"""A draft, as the decode loop runs it: what its tokens attend to in one step, and which rows stay afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.tree import BLOCKED, Tree


class Draft(NamedTuple):
    """Tokens that may come next.

    tokens: a token stands behind its parent. grades: of each, an index into the drafter's `priors`. parents: of each,
    the index of its parent in `tokens`, below its own, or -1 where it follows the text; None for a chain, in which each
    token follows the one before.
    """

    tokens: Sequence[int]
    grades: Sequence[int]
    parents: Sequence[int] | None = None

    def likeliest(self, chances: Sequence[float], most: int) -> tuple[list[int], list[float]]:
        """Choose up to `most` nodes of a tree, the likeliest path first and each after its parent. Returns them, and
        for all nodes the probability that the whole path to the node is accepted.

        chances: by grade, the probability that a token is accepted where its parent is.
        """
        assert self.parents is not None, "a chain has no order but its own"
        holds = list[float]()
        for parent, grade in zip(self.parents, self.grades, strict=True):
            holds.append((holds[parent] if parent >= 0 else 1.0) * chances[grade])
        # A node is never likelier than its parent, and of equals the parent has the smaller index.
        return sorted(range(len(holds)), key=lambda node: (-holds[node], node))[:most], holds

    def part(self, nodes: Sequence[int]) -> Draft:
        """Return the part of a tree with these nodes, in this order. Each node comes after its parent."""
        assert self.parents is not None, "a chain is cut by its length"
        place = {node: i for i, node in enumerate(nodes)} | {-1: -1}
        return Draft(
            [self.tokens[node] for node in nodes],
            [self.grades[node] for node in nodes],
            [place[self.parents[node]] for node in nodes],
        )


NOTHING = Draft((), ())


def tree_step(draft: Draft, start: int) -> Tree | None:
    """Return the attention of a step of one token, at position `start`, and a draft after it; None for a chain."""
    if draft.parents is None:
        return None
    size = len(draft.tokens) + 1
    sees = np.zeros((size, size), np.bool_)
    sees[0, 0] = True
    for row, parent in enumerate(draft.parents, 1):
        sees[row] = sees[parent + 1]
        sees[row, row] = True
    bias = np.zeros((size, start + size), np.float32)
    bias[:, start:][~sees] = BLOCKED
    return Tree(start - 1 + sees.sum(axis=1), bias)


def keep(cache: KVCache, start: int, draft: Draft, path: list[int]) -> None:
    """Drop the rows of drafted tokens that are not on the accepted `path`; the row at `start` is that of the token
    before the draft."""
    if draft.parents is None or path == list(range(len(path))):
        cache.truncate(start + 1 + len(path))
    else:
        cache.copy_rows(np.concatenate([np.arange(start + 1), start + 1 + np.array(path)]))
