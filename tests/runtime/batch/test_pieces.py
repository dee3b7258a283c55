"""How much of a prompt is read at a time beside answers that grow."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import edge
from edge.bundle import Bundle
from edge.runtime.batch.batch import SHORTEST, SLOWER, Batch
from edge.runtime.model import Model

STEP_S = 1.0


@pytest.fixture
def batch(pristine_tiny_bundle: Bundle) -> Batch:
    model = edge.load(pristine_tiny_bundle.root, speculate="off", context=256, kind=Model)
    found = Batch(model.engine, model.text, capacity=256, width=4, chunk=64, fair=True)
    found._step_s = STEP_S
    return found


def sizes(batch: Batch, takes: Callable[[int], float], count: int = 40) -> list[int]:
    """The sizes of pieces that take so long each."""
    found = []
    for _ in range(count):
        found.append(batch._size)
        batch._resize(takes(batch._size))
    return found


def test_pieces_grow_as_long_as_more_tokens_cost_nothing(batch: Batch) -> None:
    """As where steps wait for weights, and even the shortest piece takes longer than a step of those that grow."""
    found = sizes(batch, lambda size: 1.2 * STEP_S * max(1.0, size / 16))
    assert found[0] == SHORTEST and min(found[10:]) >= 14 and max(found) <= 24


def test_pieces_take_no_longer_than_a_step_where_each_token_costs(batch: Batch) -> None:
    found = sizes(batch, lambda size: STEP_S * size / 8)
    assert max(found) <= 11 and sum(found[10:]) / len(found[10:]) <= 8 * SLOWER + 1
    assert set(sizes(batch, lambda size: STEP_S * size)[10:]) <= {SHORTEST, SHORTEST + 1}


def test_one_slow_piece_is_soon_forgotten(batch: Batch) -> None:
    before = sizes(batch, lambda size: STEP_S * max(1.0, size / 16))[-1]
    batch._resize(20 * STEP_S)
    assert batch._size < before / 2
    assert sizes(batch, lambda size: STEP_S * max(1.0, size / 16))[-1] >= 14


def test_pieces_are_never_more_than_a_step_takes(batch: Batch) -> None:
    assert max(sizes(batch, lambda size: 0.0)) == 64
