"""Locks between processes, as far as the system knows any.

The library `filelock` (4.3.1) takes 46 ms to import, waits for ever for a folder that cannot be written, takes a pipe
for a lock, and leaves its files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from edge.errors import InputError
from edge.home import make_folder

PAUSE_S = 0.5  # between two looks at a lock that another process holds
# A link is not followed, for it may lead to somebody's file, and a pipe not waited for.
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_NO_FILE = {errno.ELOOP, errno.EISDIR, errno.ENXIO}


def _try_lock(file: int, sure: bool) -> bool:
    """Lock an open file until it is closed: whether nobody else has; where the file system has no locks, True unless
    that is to be sure."""
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # the file system has none
        return not sure
    return True


def _open(path: Path) -> int:
    try:
        make_folder(path.parent)
        file = os.open(path, _FLAGS, 0o600)
    except OSError as e:
        if e.errno in _NO_FILE:
            raise _no_file(path) from None
        raise InputError(f"The folder {path.parent} cannot be written: {e.strerror}.") from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise _no_file(path)
    return file


def _no_file(path: Path) -> InputError:
    return InputError(f"The lock {path} is a link, a folder or a pipe where a file belongs; remove it.")


def _take(path: Path, sure: bool) -> int | None:
    """The open file, locked; None where another process has it."""
    while True:
        file = _open(path)
        if not _try_lock(file, sure):
            os.close(file)
            return None
        if _is_at(path, file):
            return file
        os.close(file)  # another process has removed it since


def _is_at(path: Path, file: int) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(file), path.lstat())
    return False


@contextmanager
def locked(path: Path, waiting: Callable[[], None] | None = None, *, sure: bool = False) -> Iterator[bool]:
    """Hold the lock file `path`, made with its folder where there is none: whether nobody else does. It is removed in
    the end.

    waiting: is called once where another process does, which is then waited for. sure: whether a file system without
    locks counts as another process, and not as none.

    Raises:
        InputError: the file cannot be made.
    """
    file = _take(path, sure)
    if file is None and waiting is not None:
        waiting()
        while (file := _take(path, sure)) is None:
            time.sleep(PAUSE_S)
    try:
        yield file is not None
    finally:
        if file is not None:
            if _is_at(path, file):
                with contextlib.suppress(OSError):  # Windows removes no open file
                    path.unlink()
            os.close(file)
