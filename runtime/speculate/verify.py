"""Verification: one step runs a draft, and the sampler says how far it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edge.runtime.engine import BLOCKED, Tree
from edge.runtime.speculate.base import Draft

if TYPE_CHECKING:
    from edge.runtime.cache import KVCache


def accept(
    rows: NDArray[Any] | Sequence[int], draft: Draft, sampler: Callable[[Any], int]
) -> tuple[list[int], list[int]]:
    """Draw tokens until one was not drafted.

    Each is drawn from the model's own logits, in the order of the text, exactly as if there were no draft: whatever
    the sampler keeps (random numbers, tokens that were said) goes the same way, and so does the answer.

    Args:
        rows: of what follows the text, then each of the draft's N tokens: logits [1 + N, V], or what else the sampler
            takes, [1 + N].

    Returns:
        The tokens drawn, of which all but the last were drafted, and the indices in the draft of those.
    """
    sampled = [sampler(rows[0])]
    path: list[int] = []
    if draft.parents is None:
        for node, drafted in enumerate(draft.tokens):
            if sampled[-1] != drafted:
                break
            path.append(node)
            sampled.append(sampler(rows[node + 1]))
        return sampled, path
    at = -1
    for node, (parent, drafted) in enumerate(zip(draft.parents, draft.tokens, strict=True)):
        if parent == at and drafted == sampled[-1]:  # children stand behind their parent
            at = node
            path.append(node)
            sampled.append(sampler(rows[node + 1]))
    return sampled, path


def tree_step(draft: Draft, start: int) -> Tree | None:
    """What the tokens of a step attend to that runs one token and a draft behind it, the first at position `start`;
    None for a chain."""
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
    """Drop the rows of drafted tokens that are not on the `path` that held; the row at `start` is that of the token
    before the draft."""
    if draft.parents is None or path == list(range(len(path))):
        cache.truncate(start + 1 + len(path))
    else:
        cache.compact(np.concatenate([np.arange(start + 1), start + 1 + np.array(path)]))
