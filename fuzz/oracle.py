"""What a case may end in: a result, or an error of `edge` that is one sentence."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Sequence

from edge.errors import EdgeError

MOST = 1000  # characters of a sentence
# Of a size that somebody asked memory for without looking at it first.
_MEMORY = re.compile(r"bad_alloc|MemoryError|\b(allocate|out of memory)\b")


class Fault(Exception):
    """A case ended in something that it must not end in."""


class Refused(EdgeError):
    """A command said what was wrong, and ended with status 2."""


def fault_of(message: str) -> str | None:
    """What is wrong with an error's message; None where it is a sentence that can be shown to anybody."""
    if not message.strip():
        return "the error says nothing"
    if "\n" in message or "\r" in message:  # other control characters are shown as text on a terminal
        return "the error has several lines"
    if len(message) > MOST:
        return f"the error has {len(message):,} characters"
    if found := _MEMORY.search(message):
        return f"the error is about memory that nobody has checked the need of ({found[0]})"
    return None


def command(arguments: Sequence[str]) -> str:
    """Run `edge` with these arguments in this process, and return what it printed.

    Raises:
        Refused: it ended with status 2 and a sentence.
        Fault: it ended in another way than with status 0 or 2, or said more than a sentence.
    """
    from edge.cli.main import main

    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(list(arguments))
    said = []
    for stream in (out, err):
        stream.flush()
        said.append(stream.buffer.getvalue().decode(errors="replace"))  # type: ignore[attr-defined]
    if status == 0:
        return said[0]
    last = said[1].rstrip("\n").rpartition("\n")[2]
    if status == 2 and last.startswith("edge: "):
        raise Refused(last.removeprefix("edge: "))
    raise Fault(f"edge {' '.join(arguments)[:200]} ended with status {status}: {said[1][-600:]}")
