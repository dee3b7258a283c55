"""Reading files that strangers made: only regular ones, and only up to a size.

A pipe or a device in the place of a file would keep a reader waiting, or feed it for ever.
"""

from __future__ import annotations

import errno
import os
import stat
from io import FileIO
from pathlib import Path

WAITS_FOR_NOBODY = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)
BINARY = getattr(os, "O_BINARY", 0)  # of Windows, which changes the ends of lines without it
CHUNK = 1 << 20  # bytes read at a time
KINDS = {
    stat.S_ISDIR: "a folder",
    stat.S_ISFIFO: "a pipe",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
    stat.S_ISSOCK: "a socket",
}


def open_regular(path: Path) -> FileIO:
    """Open a regular file for reading, without a buffer. OSError if it cannot be opened, is no regular file, or can
    have no such name; its `strerror` says why."""
    try:
        descriptor = os.open(path, os.O_RDONLY | WAITS_FOR_NOBODY | BINARY)
    except ValueError:  # a null character, or half a surrogate
        raise OSError(errno.EINVAL, "no file can have this name", str(path)) from None
    if not stat.S_ISREG(mode := os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_regular(path, mode)
    return FileIO(descriptor)


def read_regular(path: Path, maximum: int) -> bytes:
    """The bytes of a regular file of at most `maximum` bytes. OSError: as `open_regular`, or it is longer."""
    parts, left = [], maximum + 1
    with open_regular(path) as file:
        while left and (part := file.read(min(left, CHUNK))):
            parts.append(part)
            left -= len(part)
    if not left:
        raise OSError(errno.EFBIG, f"it is longer than {maximum >> 20} MiB", str(path))
    return b"".join(parts)


def status_of(path: Path) -> os.stat_result:
    """Return the `stat` result of a regular file; OSError as for `open_regular`."""
    try:
        found = path.stat()
    except ValueError:
        raise OSError(errno.EINVAL, "no file can have this name", str(path)) from None
    if not stat.S_ISREG(found.st_mode):
        raise _not_regular(path, found.st_mode)
    return found


def identity_of(found: os.stat_result) -> list[int]:
    """Size in bytes, times in nanoseconds and inode of a file: what tells its content from another one without reading
    it."""
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _not_regular(path: Path, mode: int) -> OSError:
    kind = next((name for is_kind, name in KINDS.items() if is_kind(mode)), "something else")
    return OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))
