"""What files say, as part of a sentence."""

from __future__ import annotations

import pytest

from edge.errors import brief


@pytest.mark.parametrize(
    ("said", "shown"),
    [("LOHA", "LOHA"), ("a\nb", "a b"), ("a\u2028b\x1cc", "a b c"), (12, "12"), ("x" * 200, "x" * 60)],
)
def test_it_is_on_one_line_and_short(said: object, shown: str) -> None:
    assert brief(said) == shown
