"""Replacement of a folder by another: one of the two is complete at its path, however and whenever the process ends.

Where the system can exchange two names at once, the old folder stays at its path until then. Elsewhere there is a
moment between two renames in which it has another name; the next reader or writer of the path restores it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from edge.home import is_running

PART, OLD = ".part", ".old"  # endings of a folder that is being written, and of one that makes room for it
WAIT_S = 1.0  # for a writer between its two renames
_HERE = -100  # AT_FDCWD: relative names are of the current folder
UNABLE = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY}  # there is no exchanging
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux, and RENAME_SWAP of macOS


def real_place(path: str | Path) -> Path:
    """Return the path with links followed and `.` and `..` resolved; the path need not exist."""
    return Path(os.path.realpath(path))


def beside(place: Path, ending: str) -> Path:
    """A hidden name next to a place, of this process."""
    return place.with_name(f".{place.name}.{os.getpid()}{ending}")


def put_in_place(made: Path, place: Path) -> None:
    """Write a folder out to the disk and give it its place. What was there is removed; where this fails it stays.
    OSError where the system refuses."""
    sync_tree(made)
    old = beside(place, OLD)
    if not os.path.lexists(place):
        made.rename(place)
        undo: Callable[[], object] = functools.partial(place.rename, made)
    elif exchange(made, place):
        old = made
        undo = functools.partial(exchange, made, place)
    else:
        _rename_both(made, place, old)
        undo = functools.partial(_rename_back, made, place, old)
    try:
        sync_folder(place.parent)
    except OSError:
        undo()
        raise
    shutil.rmtree(old, ignore_errors=True)


def _rename_both(made: Path, place: Path, old: Path) -> None:
    place.rename(old)
    try:
        made.rename(place)
    except BaseException:
        old.rename(place)
        raise


def _rename_back(made: Path, place: Path, old: Path) -> None:
    place.rename(made)
    old.rename(place)


def exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two folders at once; False if the system or the disk cannot do that. OSError if it
    refuses."""
    import ctypes  # 1 MB that no run needs

    names = os.fsencode(first), os.fsencode(second)
    try:
        system = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            failed = system.renamex_np(*names, _EXCHANGE)
        else:
            failed = system.renameat2(_HERE, names[0], _HERE, names[1], _EXCHANGE)
    except (OSError, TypeError, AttributeError):  # a system, or a C library, that has no such call
        return False
    if failed and (code := ctypes.get_errno()) not in UNABLE:
        raise OSError(code, os.strerror(code), str(second))
    return not failed


def sync_tree(folder: Path) -> None:
    """Have the disk keep all files of a folder, then the folders' lists of them."""
    for root, _, files in os.walk(folder, topdown=False):
        for name in files:
            with Path(root, name).open("r+b") as written:  # Windows writes out only files that may be written
                os.fsync(written.fileno())
        sync_folder(Path(root))


def sync_folder(folder: Path) -> None:
    """Flush a folder's list of files to the disk; Windows does so by itself."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(place: Path) -> None:
    """Remove the files of killed writers of this path, and restore a folder that one of them had moved away. OSError if
    the folder cannot be read."""
    for left, owner in [*_left(place, OLD), *_left(place, PART)]:
        if alive(owner):
            continue
        if left.name.endswith(OLD) and not os.path.lexists(place):
            left.rename(place)
        else:
            shutil.rmtree(left, ignore_errors=True)


def put_back(path: Path) -> Path | None:
    """Restore a path that a killed writer had moved away, if nothing is there; wait a moment for a writer that still
    runs. Return the path of the file or folder that could not be restored, else None."""
    if os.path.exists(path):  # noqa: PTH110 - of any name: Path's raises where one is too long
        return None
    until = time.monotonic() + WAIT_S
    while True:
        try:
            place = real_place(path)
            left = [] if os.path.lexists(place) else list(_left(place, OLD))
        except (OSError, ValueError, RuntimeError):  # no such folder, or no such name
            return None
        if not left:
            return None
        old, owner = left[0]
        if owner != os.getpid() and not alive(owner):
            with contextlib.suppress(OSError):
                old.rename(place)
            return None if os.path.lexists(place) else old
        if time.monotonic() > until:
            return old
        time.sleep(0.02)


def _left(place: Path, ending: str) -> Iterator[tuple[Path, int]]:
    """Yield the files and folders that writers of a path left next to it, each with its writer's process number."""
    start = f".{place.name}."
    for name in sorted(each.name for each in place.parent.iterdir()):
        owner = name.removeprefix(start).removesuffix(ending)
        if name == f"{start}{owner}{ending}" and owner.isdecimal() and owner.isascii():
            yield place.with_name(name), int(owner)


def alive(pid: int) -> bool:
    """True if another process has this number. This process's number belonged to an earlier writer, as it starts only
    now."""
    return pid != os.getpid() and is_running(pid)
