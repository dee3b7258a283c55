"""How much of a prompt is read at a time beside answers that grow."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edge.runtime.batch.pieces import MIXED_SLOWER, SHORTEST, SLOWER, Pieces

STEP_S = 1.0


def pieces(*, mixed: bool = False) -> Pieces:
    found = Pieces(64, mixed=mixed)
    found.grew(STEP_S)
    return found


def sizes(pieces: Pieces, takes: Callable[[int], float], count: int = 40) -> list[int]:
    """The sizes of pieces that take so long each."""
    found = []
    for _ in range(count):
        found.append(pieces.size)
        pieces.read(takes(pieces.size))
    return found


def test_pieces_grow_as_long_as_more_tokens_cost_nothing() -> None:
    """As where steps wait for weights, and even the shortest piece takes longer than a step of those that grow."""
    found = sizes(pieces(), lambda size: 1.2 * STEP_S * max(1.0, size / 16))
    assert found[0] == SHORTEST and min(found[10:]) >= 14 and max(found) <= 24


def test_pieces_take_no_longer_than_a_step_where_each_token_costs() -> None:
    found = sizes(pieces(), lambda size: STEP_S * size / 8)
    assert max(found) <= 11 and sum(found[10:]) / len(found[10:]) <= 8 * SLOWER + 1
    assert set(sizes(pieces(), lambda size: STEP_S * size)[10:]) <= {SHORTEST, SHORTEST + 1}


def test_a_step_with_a_piece_takes_less_than_two_without() -> None:
    found = sizes(pieces(mixed=True), lambda size: STEP_S * (1 + size / 10))
    assert min(found[10:]) >= 7 and max(found) <= 10 * (MIXED_SLOWER - 1) * 1.25
    assert MIXED_SLOWER < 2  # what those that grow wait for at most


@pytest.mark.parametrize("mixed", [False, True])
def test_one_slow_piece_is_soon_forgotten(mixed: bool) -> None:
    found = pieces(mixed=mixed)
    before = sizes(found, lambda size: STEP_S * max(1.0, size / 16))[-1]
    found.read(20 * STEP_S)
    assert found.size < before / 2
    assert sizes(found, lambda size: STEP_S * max(1.0, size / 16))[-1] >= 14


def test_pieces_are_never_more_than_a_step_takes() -> None:
    assert max(sizes(pieces(), lambda size: 0.0)) == 64
    assert {*sizes(Pieces(2, mixed=False), lambda size: 0.0)} == {2}
