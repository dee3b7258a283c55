"""The standard streams of a process that a shell may have closed, or whose other end may be gone or full."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from pathlib import Path
from typing import NoReturn, TextIO

from edge.errors import InputError


def complete() -> bool:
    """Open the null device for each standard stream that is closed; return True if standard output was closed.

    Otherwise a file that is opened later would get the stream's number, and the output of libraries would go into it.
    """
    closed = sys.stdout is None
    if None in (sys.stdin, sys.stdout, sys.stderr):
        while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(number, True)
        os.close(number)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_Closed()))
    if sys.stdout is None:
        sys.stdout = _nowhere()
    if sys.stderr is None:
        sys.stderr = _nowhere()
    return closed


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")


class StandardInputClosed(InputError):
    """Something is to be read from standard input, and there is none."""

    def __init__(self) -> None:
        super().__init__("Standard input is closed; name what to read, or redirect it.")


class _Closed(io.RawIOBase):
    """Standard input where there is none: reading says so."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> NoReturn:
        raise StandardInputClosed


def settle() -> bool:
    """Flush the output; False if that fails. The rest is then discarded when Python ends."""
    return all([_flushed(stream) for stream in (sys.stdout, sys.stderr)])


def _flushed(stream: TextIO) -> bool:
    try:
        stream.flush()
    except (OSError, ValueError):  # ValueError: it was closed
        drop(stream)
        return False
    return not _only_read(stream)  # what was lost before is not written again


def _only_read(stream: TextIO) -> bool:
    """True if a shell opened an output stream for reading: `1</dev/null`."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        return fcntl.fcntl(stream.fileno(), fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    except (OSError, ValueError):  # it is no file
        return False


class _Log(logging.Handler):
    """Shows what the library says of its work as a line of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError, ValueError):
            print(record.getMessage(), file=sys.stderr, flush=True)


def show_log() -> None:
    """Show on standard error what the library says: a program that imports it gets warnings alone."""
    log = logging.getLogger("edge")
    if not any(isinstance(each, _Log) for each in log.handlers):
        log.addHandler(_Log())
        log.setLevel(logging.INFO)


def drop(stream: TextIO) -> None:
    """Discard all further output to a stream."""
    with contextlib.suppress(OSError, ValueError):  # it may have no file descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
