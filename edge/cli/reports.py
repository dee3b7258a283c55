"""Writing a report whole, or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from edge.errors import InputError


def check_target(path: Path) -> None:
    """Find out before a long measurement whether a report could be written here.

    Raises:
        InputError: says why not.
    """
    if path.is_dir():
        raise InputError(f"The report {path} cannot be written: it is a folder; name a file.")
    part = _part(path)
    try:
        part.touch()
        part.unlink()
    except OSError as e:
        raise InputError(f"The report {path} cannot be written: {e.strerror}.") from None


def write_report(path: Path, text: str) -> None:
    """Write a file, which appears when it is complete, and replaces one that was there.

    Raises:
        InputError: it cannot be written, for example because the disk is full; nothing new is left there.
    """
    part = _part(path)
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # some file systems tell only now that the disk is full
        part.replace(path)
    except OSError as e:
        raise InputError(f"The report {path} could not be written: {e.strerror}; nothing new was left there.") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")
