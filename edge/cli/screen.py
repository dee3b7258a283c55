"""What commands write to a terminal: control characters of others are shown as text there, and only ours act.

Names, errors and answers come from bundles, files, phones and models. On a terminal their escape sequences would
recolour or erase what stands there, rename the window or answer in a person's stead. `install` puts a `Screen` before
standard output and error where they are terminals, so that whatever is printed passes it; what draws with codes of ours
(`tables.console`, a progress line) writes below it, and text of others by `visible`. Files and pipes get every byte.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast

# Control characters but tabs and line ends; what reorders or breaks lines; bytes that were no UTF-8 (lone surrogates).
_ACTING = re.compile("\r(?!\n)|[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """The text as a terminal may have it: each character that would act is written out, such as ``\\x1b``."""
    return _ACTING.sub(_written_out, text)


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte that Python could not decode
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class Screen:
    """A terminal's stream that shows all text as `visible` has it, in every other respect the stream itself."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(visible(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def screened(stream: TextIO) -> TextIO:
    """The stream with a screen before it where it is a terminal."""
    if isinstance(stream, Screen) or not stream.isatty():
        return stream
    return cast(TextIO, Screen(stream))


def install() -> None:
    """Put a screen before standard output and before standard error, each where it is a terminal."""
    sys.stdout, sys.stderr = screened(sys.stdout), screened(sys.stderr)


def below(stream: TextIO) -> TextIO:
    """The stream itself, for what draws with control codes of ours."""
    return cast(Screen, stream).stream if isinstance(stream, Screen) else stream
