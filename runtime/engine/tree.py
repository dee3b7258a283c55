"""Attention of the tokens of one step that do not follow each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCKED = np.float32(-1e9)  # added to the score of what a token must not attend to


@dataclass(frozen=True)
class Tree:
    """Tokens of one step that do not follow each other: the beams of a search.

    positions [S]: each token's position in its text; siblings share one. bias [S, T], T the cache's length after the
    step: 0 where a token attends to a row, `BLOCKED` where it does not. A token never attends to one behind it.
    """

    positions: NDArray[np.int64]
    bias: NDArray[np.float32]
