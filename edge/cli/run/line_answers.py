"""The lines of a file of prompts or texts, and the answers to them."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple


class Answer(NamedTuple):
    """The whole answer to one text: as it is printed, without a line end after it; its number of tokens; and whether
    it ended because there may not be more."""

    shown: str
    tokens: int = 0
    cut: bool = False


Line = tuple[int, str]
"""A line and its place before it, counted from 0."""
Answers = Generator[tuple[int, Answer], None, None]
"""The place of each line, and the answer to it."""
