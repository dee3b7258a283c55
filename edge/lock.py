"""Locks between processes, as far as the system knows any."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from edge.errors import InputError
from edge.home import make_folder

PAUSE_S = 0.5  # between two looks at a lock that another process holds


def _try_lock(file: IO[str]) -> bool:
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


@contextmanager
def locked(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[bool]:
    """Hold the lock file `path`, made with its folder where there is none: whether nobody else does.

    waiting: is called once where another process does, which is then waited for. The file stays: removing it would let
    two processes lock two files of one name.

    Raises:
        InputError: the file cannot be made.
    """
    try:
        make_folder(path.parent)
        file = path.open("a", encoding="utf-8")
    except OSError as e:
        raise InputError(f"The folder {path.parent} cannot be written: {e.strerror}.") from None
    with file:
        free = _try_lock(file)
        if not free and waiting is not None:
            waiting()
            while not (free := _try_lock(file)):
                time.sleep(PAUSE_S)
        yield free
