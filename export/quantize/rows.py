"""Rounding for products of many rows: int8 with one scale per output, in which no pair of products overflows.

x86 processors without VNNI (AVX2 alone: most laptops older than 2020) multiply 8-bit activations (0 to 255) with 8-bit
weights in pairs that follow each other along K, and add each pair in a signed 16-bit integer, which saturates: two
weights of 127 would give 64,770, and 32,767 is the most that it holds. So a pair's positive weights sum to 128 at most
(255 * 128 = 32,640), and its negative ones to -128 at least. Then every processor gets the same integers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge.export.facts.tensors import RowsTensor

METHOD = "rows, no overflow"
PAIR = 128  # that a pair's positive weights sum to at most, and its negative ones in absolute value
# What an output's largest weight may be rounded to. A smaller one makes coarser steps and fewer pairs that are too
# large; at 64 there are none. The best is 97 on average, and costs 0.4 of 8 bits where 7-bit weights would cost one.
LARGEST = (127, 118, 110, 104, 98, 92, 86, 78, 64)


def rows_to_nearest(w: NDArray[np.float32], *, precise: bool = False) -> RowsTensor:
    """Round a weight [N, K] to int8, each output with the scale of `LARGEST` whose squared error is the smallest;
    `precise` as `RowsTensor` has it."""
    reach = np.abs(w).max(1).astype(np.float32)
    q, scales = np.zeros(w.shape, np.int8), np.ones(len(w), np.float32)
    errors = np.full(len(w), np.inf)
    for largest in LARGEST:
        scale = np.where(reach == 0, np.float32(1), reach / np.float32(largest))
        rounded = _without_overflow(np.rint(w / scale[:, None]).astype(np.int16))
        error = np.square(rounded * scale[:, None] - w).sum(1, dtype=np.float64)
        better = error < errors
        q[better], scales[better], errors[better] = rounded[better], scale[better], error[better]
    scales[reach == 0] = 0
    return RowsTensor(q, scales, METHOD, precise=precise)


def _without_overflow(q: NDArray[np.int16]) -> NDArray[np.int16]:
    """`q` [N, K], in which pairs that are too large give up their excess, half of it each."""
    paired = np.pad(q, ((0, 0), (0, q.shape[1] % 2)))
    first, second = paired[:, 0::2], paired[:, 1::2]
    for sign in (1, -1):
        excess = np.maximum(first * sign, 0) + np.maximum(second * sign, 0) - PAIR
        # Only where both have this sign: one alone is at most 127.
        first -= sign * np.where(excess > 0, (excess + 1) // 2, 0).astype(np.int16)
        second -= sign * np.where(excess > 0, excess // 2, 0).astype(np.int16)
    return paired[:, : q.shape[1]]
