"""Filter for text that commands write to a terminal: control characters in it are shown as text, and only those of
`edge` itself act.

Names, errors and answers come from bundles, files, phones and models. On a terminal their escape sequences would
recolour or erase text, rename the window or answer instead of a person. `install` puts a `Screen` before standard
output and error where they are terminals, so that all printed text passes it. Code that draws with control codes
(`tables.console`, a progress line) writes below it, and passes foreign text through `visible`. Files and pipes get
every byte.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable
from typing import Any, TextIO, cast

# Control characters but tabs and line ends; what reorders or breaks lines; bytes that were no UTF-8 (lone surrogates);
# what is not seen: marks of direction, joiners, selectors, fillers, tags.
_ACTING = re.compile(
    "\r(?!\n)|[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\ud800-\udfff]"
    "|[\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff"
    "\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
LEFTWARDS = re.compile(  # letters of Hebrew, Arabic and what lies between them and after them
    "[\u05be-\u05f4\u0608-\u061b\u061d-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff]"
)
DIRECTION = "\u061c\u200e\u200f"
# Letters that are joined or kept apart: Hebrew to the scripts of India and Mongolia, Arabic's forms, and later ones.
JOINED = re.compile("[\u0590-\u1cff\ua800-\uabff\ufb1d-\ufdff\ufe70-\ufefc\U00010a00-\U00011fff\U0001e900-\U0001e95f]")
JOINERS = "\u034f\u200c\u200d"
SPACE = "\u200b"  # without a width: where a line may end in scripts that write no spaces
SCRIPTS_WITHOUT_SPACES = re.compile("[\u0e00-\u109f\u1780-\u17ff\u1950-\u1aaf]")
SELECTORS = re.compile("[\u180b-\u180d\u180f\ufe00-\ufe0f]")
OF_IDEOGRAPHS = re.compile("[\U000e0100-\U000e01ef]")
TAGS = re.compile("\U0001f3f4[\U000e0020-\U000e007f]{1,7}\\Z")  # a flag's
KEYCAPS = "#*0123456789"
FOREIGN = "\u0590"  # Hebrew: scripts before it have no use for joiners and selectors
LINE = 256  # characters before one that are looked at


def visible(text: str, before: str = "") -> str:
    """Return the text in a form that is safe on a terminal: each control or invisible character is written out, such as
    ``\\x1b``, except where scripts and emoji need it. before: the text in front of it on its line."""
    whole, at, parts = before + text, len(before), list[str]()
    for found in _ACTING.finditer(whole, at):
        if not _belongs(whole, found.start()):
            parts += whole[at : found.start()], _written_out(found)
            at = found.end()
    return "".join([*parts, whole[at:]])


def _belongs(text: str, at: int) -> bool:
    """True if an invisible character is a part of honest text."""
    character, base = text[at], text[max(0, at - 1) : at]
    if character in DIRECTION:  # next to letters that are written from right to left, which reorder as much themselves
        return LEFTWARDS.search(text, max(text.rfind("\n", 0, at), at - LINE, 0), at + 2) is not None
    if not base:
        return False
    kind = unicodedata.category(base)
    if character in JOINERS:
        return JOINED.match(base) is not None or (base >= FOREIGN and kind[0] in "MS")
    if character == SPACE:
        return SCRIPTS_WITHOUT_SPACES.match(base) is not None
    if SELECTORS.match(character):
        return kind[0] == "S" or base in KEYCAPS or (base >= FOREIGN and kind[0] in "LP") or base in "\u203c\u2049"
    if OF_IDEOGRAPHS.match(character):
        return kind == "Lo" and base >= "\u2e80"
    return TAGS.search(text[max(0, at - 7) : at + 1]) is not None


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte that Python could not decode
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"


class Screen:
    """A terminal's stream that writes all text through `visible`, and is otherwise the stream itself."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._before = ""  # the end of what was written

    def write(self, text: str) -> int:
        self.stream.write(visible(text, self._before))
        self._before = (self._before + text)[-LINE:]
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def screened(stream: TextIO) -> TextIO:
    """Return the stream behind a `Screen` if it is a terminal, else the stream."""
    if isinstance(stream, Screen) or not stream.isatty():
        return stream
    return cast(TextIO, Screen(stream))


def install() -> None:
    """Put a screen before standard output and before standard error, each where it is a terminal."""
    sys.stdout, sys.stderr = screened(sys.stdout), screened(sys.stderr)


def below(stream: TextIO) -> TextIO:
    """Return the stream without its `Screen`, for code that draws with control codes."""
    return cast(Screen, stream).stream if isinstance(stream, Screen) else stream
