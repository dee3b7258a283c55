"""Terms that graphs of fixed sizes add to attention scores: masks, and T5's biases by distance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def mask_of(groups: int, size: int, capacity: int, length: int, masked: float) -> NDArray[np.float32]:
    """The mask [1, 1, groups * size, capacity + size] of `size` tokens that follow `length` rows of the cache. masked:
    what is added to the scores of what a token must not attend to."""
    mask = np.full((1, 1, groups, size, capacity + size), masked, np.float32)
    mask[..., :length] = 0
    mask[..., capacity:][..., *np.tril_indices(size)] = 0
    return mask.reshape(1, 1, groups * size, capacity + size)


def distances_of(
    bias: NDArray[np.float32], positions: NDArray[np.int64], kept: NDArray[np.int64]
) -> NDArray[np.float32]:
    """The biases [heads, S, C + S] of tokens at `positions` [S] for rows of a cache at the positions `kept` [C] and for
    each other. bias [heads, N]: of the distances 0 and up, query minus key."""
    keys = np.concatenate([kept, positions])
    return bias[:, np.clip(positions[:, None] - keys, 0, bias.shape[1] - 1)]


def source_mask_of(length: int, size: int, bias: NDArray[np.float32] | None, masked: float) -> NDArray[np.float32]:
    """The mask [1, 1 or heads, T, T] of an encoder's input of `length` tokens, filled up to T = `size`. bias [heads,
    2 R + 1]: of the distances from -R to R, key minus query. masked: as in `mask_of`."""
    mask = np.zeros((1, 1, size, size), np.float32)
    if bias is not None:
        reach, at = bias.shape[1] // 2, np.arange(size)
        mask = bias[:, np.clip(at - at[:, None], -reach, reach) + reach][None].copy()
    mask[..., length:] = masked
    return mask
