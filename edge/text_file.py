"""Reading the text files that users name."""

from __future__ import annotations

from pathlib import Path

from edge.errors import InputError


def lines_of(text: str) -> list[str]:
    """The lines of a text that people wrote on any system."""
    return [line.removesuffix("\r") for line in text.split("\n")]


def read_text(path: Path, kind: str = "") -> str:
    """A file's text. kind: what errors call the file, before its path.

    Raises:
        InputError: it cannot be read, or is not UTF-8.
    """
    name = f"{kind} {path}".strip()
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
        raise InputError(f"{name} is not UTF-8 at byte {e.start}; convert it.") from None
    except OSError as e:
        raise InputError(f"{name} cannot be read: {e.strerror}.") from None
