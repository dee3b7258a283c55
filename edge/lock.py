"""Locks between processes, as far as the system knows any."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from edge.errors import InputError

PAUSE_S = 0.5  # between two looks at a lock that another process holds


def try_lock(file: IO[str]) -> bool:
    """Lock an open file until it is closed: whether nobody else has; True, too, where the file system has no locks."""
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # the file system has none
        pass
    return True


def open_lock(path: Path) -> IO[str]:
    """The lock file `path`, made with its folder where there is none.

    Raises:
        InputError: it cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a", encoding="utf-8")
    except OSError as e:
        raise InputError(f"The folder {path.parent} cannot be written: {e.strerror}.") from None


@contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path`, made where there is none; `waiting` is called once where another process holds it.

    The file stays: removing it would let two processes lock two files of one name.

    Raises:
        InputError: the file cannot be made.
    """
    with open_lock(path) as file:
        if not try_lock(file):
            waiting()
            while not try_lock(file):
                time.sleep(PAUSE_S)
        yield
