"""Word wrap for text that is still being generated, on a terminal.

Rows of code and of tables stay as they are, so that they can be copied, and so does a word longer than a line. Between
the characters of Chinese and Japanese a line may break, except at punctuation (UAX 14, classes CL, EX, NS and OP).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

FENCES = "```", "~~~"  # what begins and ends a block of code
STARTS_NO_LINE, ENDS_NO_LINE = ("Pe", "Pf", "Po", "Lm"), ("Ps", "Pi")  # categories of characters
SMALL = set("ぁぃぅぇぉっゃゅょァィゥェォッャュョ")  # which start no line either
ITEMS = "-*+•"  # what begins an item of a list, and no line of code
TAB = 8
COMBINING = "\u0300"  # the first character that does not take one column
JOINER = "\u200d"  # of emoji that are one


class Wrapped:
    """Writer that adds line ends where text would not fit. Text is delayed until its line is known: the rest of a word;
    `end` writes that.

    write: receives the text. width: returns the number of columns, at each write.
    """

    def __init__(self, write: Callable[[str], object], width: Callable[[], int]) -> None:
        self._write, self._ask, self._width = write, width, width()
        self._placed: list[str] = []
        self._column = 0
        self._blank = self._word = ""  # after what was placed
        self._line = ""  # of the text, as far as it came
        self._fence: str | None = None
        self._as_it_is = self._flows = False  # this line; this word, which is longer than one

    def write(self, text: str) -> None:
        self._width = self._ask()
        for character in text:
            self._take(character)
        self._flush()

    def end(self) -> None:
        """Write the rest of the text."""
        self._place()
        self._flush()

    def _flush(self) -> None:
        if self._placed:
            self._write("".join(self._placed))
            self._placed.clear()

    def _take(self, character: str) -> None:
        if character == "\n":
            self._end_line()
            return
        self._line += character
        if self._as_it_is:
            self._placed.append(character)
        elif character in " \t":
            self._place()
            self._blank += character
            self._flows = False
        elif self._is_code(character):
            self._as_it_is = True
            self._placed += self._blank, character
            self._blank = ""
        else:
            self._add(character)

    def _add(self, character: str) -> None:
        """A character of a word."""
        if self._may_break(character):
            self._place()
            self._flows = False
        self._word += character
        width = self._width
        if self._flows:
            self._column = _wrapped(self._column + cells(self._word), width)
            self._placed.append(self._word)
            self._word = ""
        elif 2 * len(self._word) > width and cells(self._word) > width:
            self._place()
            self._flows = True

    def _may_break(self, character: str) -> bool:
        """True if a line may end before this character without a blank."""
        before = self._word[-1:]
        if not before or not (_is_ideograph(character) or _is_ideograph(before)):
            return False
        if JOINER in (before, character) or character in SMALL or not cells(character):
            return False
        category = unicodedata.category
        return category(character) not in STARTS_NO_LINE and category(before) not in ENDS_NO_LINE

    def _place(self) -> None:
        """Put the word where it goes."""
        if not self._word:
            return
        width, length = self._width, cells(self._word)
        start = self._column
        for blank in self._blank:
            start += TAB - start % TAB if blank == "\t" else 1
        if self._column and start + length > width:
            self._placed += "\n", self._word
            start = 0
        else:
            self._placed += self._blank, self._word
        self._column = _wrapped(start + length, width)
        self._blank = self._word = ""

    def _is_code(self, character: str) -> bool:
        """True if the first character of a line, after blanks, begins a line of a table or of code."""
        blank = self._line[:-1]
        if blank.strip() or self._word:
            return False
        indented = blank.startswith("    ") or "\t" in blank
        return character == "|" or (indented and character not in ITEMS and not character.isdigit())

    def _end_line(self) -> None:
        self._place()
        self._placed.append("\n")
        line = self._line.strip()
        if (fence := line[:3]) in FENCES and self._fence in (None, fence) and fence[0] not in line[3:].lstrip(fence[0]):
            self._fence = fence if self._fence is None else None
        self._column, self._blank, self._line, self._flows = 0, "", "", False
        self._as_it_is = self._fence is not None


def fold(text: str, width: int) -> str:
    """A text, its lines broken at words."""
    parts: list[str] = []
    wrapped = Wrapped(parts.append, lambda: width)
    wrapped.write(text)
    wrapped.end()
    return "".join(parts)


def cells(text: str) -> int:
    """Return the number of columns that a text needs."""
    if not text or max(text) < COMBINING:
        return len(text)
    from rich.cells import cell_len  # 15 ms

    return cell_len(text)


def _wrapped(column: int, width: int) -> int:
    """The column of a text that the terminal itself continues on the next lines."""
    return (column - 1) % width + 1 if column else 0


def _is_ideograph(character: str) -> bool:
    """True if a character is wide and its script is written without blanks. Korean has blanks."""
    if character < "\u1100" or "\uac00" <= character <= "\ud7a3":
        return False
    return unicodedata.east_asian_width(character) in ("W", "F")
