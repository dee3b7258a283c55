"""Writing a report whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from edge.cli.screen import screened
from edge.errors import InputError
from edge.home import make_file, part_of, replacing


def check_target(path: Path, what: str = "report") -> None:
    """Find out before a long measurement whether a report, or what else is named, could be written here.

    Raises:
        InputError: says why not.
    """
    if path.is_dir():
        raise InputError(f"The {what} {path} cannot be written: it is a folder; name a file.")
    if is_device(path):
        return
    part = part_of(path.resolve())
    try:
        os.close(make_file(part, 0o600))
        part.unlink()
    except OSError as e:
        raise InputError(f"The {what} {path} cannot be written: {e.strerror}.") from None


def write_report(path: Path, text: str) -> None:
    """Write a file, which appears when it is complete, and replaces one that was there. A device or a pipe, such as
    /dev/stdout, is written to as it is.

    Raises:
        InputError: it cannot be written, for example because the disk is full; nothing new is left there.
    """
    device = is_device(path)
    left = "" if device else "; nothing new was left there"
    try:
        write_whole(path if device else path.resolve(), text)  # a link goes on to lead to the file
    except OSError as e:
        raise InputError(f"The report {path} could not be written: {e.strerror}{left}.") from None


def write_whole(path: Path, text: str) -> None:
    """Write a file, which appears when it is complete. A device or a pipe is written to as it is, a terminal screened.
    OSError where it cannot be."""
    if is_device(path):
        with path.open("w", encoding="utf-8") as device:
            screened(device).write(text)
        return
    with replacing(path) as part, part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # some file systems tell only now that the disk is full


def is_device(path: Path) -> bool:
    """True for a device or a pipe. Renaming a file to its name would replace it."""
    return path.exists() and not path.is_file()


def same_file(a: Path, b: Path) -> bool:
    """True if two paths lead to one existing file."""
    try:
        return a.samefile(b)
    except OSError:  # one of them is not there
        return False
