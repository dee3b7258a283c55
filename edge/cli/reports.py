"""Writing a report whole, or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from edge.cli.screen import screened
from edge.errors import InputError


def check_target(path: Path) -> None:
    """Find out before a long measurement whether a report could be written here.

    Raises:
        InputError: says why not.
    """
    if path.is_dir():
        raise InputError(f"The report {path} cannot be written: it is a folder; name a file.")
    if _is_device(path):
        return
    part = _part(path)
    try:
        part.touch()
        part.unlink()
    except OSError as e:
        raise InputError(f"The report {path} cannot be written: {e.strerror}.") from None


def write_report(path: Path, text: str) -> None:
    """Write a file, which appears when it is complete, and replaces one that was there. A device or a pipe, such as
    /dev/stdout, is written to as it is.

    Raises:
        InputError: it cannot be written, for example because the disk is full; nothing new is left there.
    """
    if _is_device(path):
        try:
            with path.open("w", encoding="utf-8") as file:
                screened(file).write(text)
        except OSError as e:
            raise InputError(f"The report {path} could not be written: {e.strerror}.") from None
        return
    part = _part(path)
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # some file systems tell only now that the disk is full
        part.replace(path.resolve())  # a link goes on to lead to the file
    except OSError as e:
        raise InputError(f"The report {path} could not be written: {e.strerror}; nothing new was left there.") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _part(path: Path) -> Path:
    """Where a report is written, next to the file that it becomes."""
    real = path.resolve()
    return real.with_name(f".{real.name}.{os.getpid()}.part")


def _is_device(path: Path) -> bool:
    """Whether this is a device or a pipe: renaming a file to its name would take its place away."""
    return path.exists() and not path.is_file()
