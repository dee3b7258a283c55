"""Reading the text files that users name."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from edge.errors import InputError

MOST = 1 << 28  # bytes of a text: more than any model reads in days, and what /dev/zero has in a moment
MOST_LINE = 1 << 24


def lines_of(text: str) -> list[str]:
    """The lines of a text that people wrote on any system."""
    return [line.removesuffix("\r") for line in text.split("\n")]


def read_whole(file: BinaryIO, name: str) -> bytes:
    """Read a file, a pipe or a device to its end; InputError if there is too much. name: for error messages."""
    data = file.read(MOST + 1)
    if len(data) > MOST:
        raise InputError(f"{name} has more than {MOST >> 20} MiB; split it, or name another.")
    return data


def read_line(file: BinaryIO, name: str) -> bytes:
    """Read the next line with its end, or nothing at the file's end; InputError if it is too long. name: its own, for
    error messages."""
    data = file.readline(MOST_LINE + 1)
    if len(data) > MOST_LINE:
        raise InputError(f"{name} has more than {MOST_LINE >> 20} MiB; split it.")
    return data


def read_text(path: Path, kind: str = "") -> str:
    """A file's text. kind: what errors call the file, before its path.

    Raises:
        InputError: it cannot be read, or is not UTF-8.
    """
    name = f"{kind} {path}".strip()
    try:
        with path.open("rb") as file:
            text = read_whole(file, name).decode()
    except UnicodeDecodeError as e:
        raise InputError(f"{name} is not UTF-8 at byte {e.start}; convert it.") from None
    except OSError as e:
        raise InputError(f"{name} cannot be read: {e.strerror}.") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")
