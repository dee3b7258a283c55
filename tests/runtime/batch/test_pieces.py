"""How much of a prompt is read at a time beside answers that grow."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edge.runtime.batch.pieces import AGAIN, MIXED_SLOWER, SHORTEST, SLOWER, MixedPieces, Pieces

STEP_S = 1.0
GROWING = 3


def pieces(most: int = 64) -> Pieces:
    found = Pieces(most)
    found.grew(GROWING, STEP_S)
    return found


def sizes(pieces: Pieces, takes: Callable[[int], float], count: int = 40, growing: int = GROWING) -> list[int]:
    """The sizes of pieces that take so long each."""
    found = []
    for _ in range(count):
        found.append(size := pieces.beside(growing))
        if size:
            pieces.read(growing, size, takes(size))
        else:
            pieces.grew(growing, takes(0))
    return found


def test_pieces_grow_as_long_as_more_tokens_cost_nothing() -> None:
    """As where steps wait for weights, and even the shortest piece takes longer than a step of those that grow."""
    found = sizes(pieces(), lambda size: 1.2 * STEP_S * max(1.0, size / 16))
    assert found[0] == SHORTEST and min(found[10:]) >= 14 and max(found) <= 24


def test_pieces_take_no_longer_than_a_step_where_each_token_costs() -> None:
    found = sizes(pieces(), lambda size: STEP_S * size / 8)
    assert max(found) <= 11 and sum(found[10:]) / len(found[10:]) <= 8 * SLOWER + 1
    assert set(sizes(pieces(), lambda size: STEP_S * size)[10:]) <= {SHORTEST, SHORTEST + 1}


def test_one_slow_piece_is_soon_forgotten() -> None:
    found = pieces()
    before = sizes(found, lambda size: STEP_S * max(1.0, size / 16))[-1]
    found.read(GROWING, found.size, 20 * STEP_S)
    assert found.size < before / 2
    assert sizes(found, lambda size: STEP_S * max(1.0, size / 16))[-1] >= 14


def test_pieces_are_never_more_than_a_step_takes() -> None:
    assert max(sizes(pieces(), lambda size: 0.0)) == 64
    assert {*sizes(pieces(2), lambda size: 0.0)} == {2}


def test_a_step_with_a_piece_takes_at_most_as_long_as_two_without() -> None:
    found = sizes(MixedPieces(64), lambda size: STEP_S * (1 + size / 10))
    pieces = [size for size in found if size]
    assert min(pieces[10:]) >= 7 and max(pieces) <= 10 * (MIXED_SLOWER - 1) * 1.25
    assert MIXED_SLOWER <= 2  # what those that grow wait for at most


def test_what_a_step_takes_without_a_piece_is_measured_for_each_number_of_those_that_grow_and_again() -> None:
    """Twice at first, and where it seems longer than before: pieces are no shorter for more answers or longer texts."""
    mixed, count = MixedPieces(64), 3 * AGAIN
    few = sizes(mixed, lambda size: STEP_S * (1 + size / 10), count)
    many = sizes(mixed, lambda size: STEP_S * (3 + size / 10), count, 15)
    for found in few, many:
        assert [at for at, size in enumerate(found) if not size] == [0, 1, AGAIN + 2, 2 * AGAIN + 3]
    assert max(many) >= 20
    longer = sizes(mixed, lambda size: STEP_S * (6 + size / 10), count, 15)
    assert max(longer) >= 40 > max(many) and longer.count(0) <= 5


def test_a_long_prompt_is_read_by_few_tokens_and_says_nothing_of_the_next_one() -> None:
    """Of which each token attends to much, beside short texts."""
    mixed = MixedPieces(64)
    slow = sizes(mixed, lambda size: STEP_S * (1 + (2 + size / 10 if size else 0)))
    assert {*slow[10:]} <= {0, SHORTEST, SHORTEST + 1} and slow.count(0) <= 5
    quick = sizes(mixed, lambda size: STEP_S * (1 + size / 10))
    assert 8 <= max(quick) <= 12


@pytest.mark.parametrize("slow", range(6))
def test_one_slow_step_changes_little(slow: int) -> None:
    """Whichever it is: the first ones are what a step takes without a piece."""
    mixed, found = MixedPieces(64), list[int]()
    for at in range(3 * AGAIN):
        found += sizes(mixed, lambda size, at=at: STEP_S * (50 if at == slow else 1 + size / 20), 1)  # type: ignore[misc]
    assert 16 <= max(found) <= 25 and found.count(0) <= 7
    assert found[2 * AGAIN] >= 10
