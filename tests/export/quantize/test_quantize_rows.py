"""int8 with one scale per output: close to the weights, and without a pair of products that overflows 16 bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from edge.export.facts.tensors import RowsTensor, stack_rows
from edge.export.quantize.rows import rows_to_nearest

RANDOM = np.random.default_rng(7)
WEIGHTS: dict[str, Callable[[], NDArray[np.float64]]] = {
    "normal": lambda: RANDOM.standard_normal((64, 96)),
    "heavy tails": lambda: RANDOM.standard_t(2, (64, 96)),
    "all alike": lambda: np.ones((8, 6)),
    "all alike, negative": lambda: -np.ones((8, 6)),
    "alternating signs": lambda: np.resize([1.0, -1.0], (8, 6)),
    "an odd number of columns": lambda: RANDOM.standard_normal((16, 7)),
    "one column": lambda: RANDOM.standard_normal((4, 1)),
    "a row of zeros": lambda: np.concatenate([np.zeros((1, 8)), RANDOM.standard_normal((3, 8))]),
}


def saturating(x: NDArray[np.uint8], q: NDArray[np.int8]) -> NDArray[np.int64]:
    """x [M, K] times q [N, K] as x86 without VNNI adds: neighbours along K in a signed 16-bit integer (vpmaddubsw)."""
    odd = q.shape[1] % 2
    products = x[:, None, :].astype(np.int64) * q[None].astype(np.int64)
    pairs = np.pad(products, ((0, 0), (0, 0), (0, odd))).reshape(len(x), len(q), -1, 2).sum(-1)
    return np.clip(pairs, -(2**15), 2**15 - 1).sum(-1)


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS.keys())
def test_no_activations_make_a_pair_of_products_overflow(weights: Callable[[], NDArray[np.float64]]) -> None:
    q = rows_to_nearest(weights().astype(np.float32)).q
    worst = [np.where(sign * row > 0, 255, 0) for row in q for sign in (1, -1)]
    x = np.array([np.full(q.shape[1], 255), *worst], np.uint8)
    exact = x.astype(np.int64) @ q.T.astype(np.int64)
    assert (saturating(x, q) == exact).all()


def test_what_this_prevents_would_be_seen() -> None:
    q, x = np.full((1, 2), 127, np.int8), np.full((1, 2), 255, np.uint8)
    assert saturating(x, q) != x.astype(np.int64) @ q.T.astype(np.int64)


@pytest.mark.parametrize(("weights", "bits"), [("normal", 7.5), ("heavy tails", 7.8)])
def test_it_loses_less_than_half_a_bit(weights: str, bits: float) -> None:
    w = WEIGHTS[weights]().astype(np.float32)
    steps = np.abs(w).max(1, keepdims=True) / 127
    eight_bits = np.square(np.rint(w / steps) * steps - w).sum()
    error = np.square(rows_to_nearest(w).dequantize() - w).sum()
    assert error < eight_bits * 4 ** (8 - bits)


def test_rows_of_zeros_stay_zeros() -> None:
    made = rows_to_nearest(np.zeros((3, 4), np.float32))
    assert not made.dequantize().any() and np.isfinite(made.scales).all()


def test_matrices_that_are_stacked_keep_what_they_read() -> None:
    first, second = (rows_to_nearest(np.ones((n, 4), np.float32), precise=True) for n in (2, 3))
    both = stack_rows([first, second])
    assert isinstance(both, RowsTensor) and both.precise and both.q.shape == (5, 4)
