"""The cache folder of `edge`: files that can be recreated or fetched again, such as downloaded models, stamps of
checked bundles and measured costs.

The platforms' cache folders are named here: the library `platformdirs` (4.14) would take 6 ms of each start for that.

It is private to its owner: folders and files are created so. A file that belongs to another user is not used, because
that user can change it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from edge.errors import InputError

KEPT = 200  # bundles whose stamps and costs are kept: a few kB each, made again where they are missing
SMALL = 16 << 20  # bytes of the largest file that is read as a whole
_PART = r".+\.([0-9]{1,9})-[0-9]+\.part"  # see `replacing`
_STALE_NS = 24 * 3600 * 10**9  # since which nobody has written to a part that somebody may still write
_UNKNOWN_NS = 3600 * 10**9  # since when an entry counts as unused whose time is yet to come

NOWHERE = Path(os.devnull) / "edge"  # no file can have this name
UNWRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}  # a folder, not what is written into it

_log = logging.getLogger(__name__)


def cache_dir() -> Path:
    """Return the cache folder: `EDGE_HOME` if it is set, else `edge` in the platform's cache folder. It is not created
    here. For a user without a home it is a path that cannot exist, which has the same effect as a cache that cannot be
    written.

    Raises:
        InputError: `EDGE_HOME` lies in a home that does not exist.
    """
    named = os.environ.get("EDGE_HOME")
    try:
        if named:
            return Path(named).expanduser()
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "edge"
        if sys.platform == "win32":
            local = os.environ.get("LOCALAPPDATA")
            return (Path(local) if local else Path.home() / "AppData" / "Local") / "edge" / "cache"
        xdg = os.environ.get("XDG_CACHE_HOME")
        base = Path(xdg) if xdg and Path(xdg).is_absolute() else Path.home() / ".cache"
        return base / "edge"
    except RuntimeError:
        if named:
            raise InputError(
                f"EDGE_HOME is {named!r}, in a home that does not exist; set EDGE_HOME to a folder that edge may write."
            ) from None
        _warn_without("This user has no home folder")
        return NOWHERE


def why_unwritable() -> str | None:
    """Return the reason if the cache folder cannot be written; else None."""
    folder = cache_dir()
    try:
        make_folder(folder)
    except OSError as e:
        return e.strerror or str(e)
    return None if os.access(folder, os.W_OK | os.X_OK) else os.strerror(errno.EACCES)


@cache
def _warn_without(why: str) -> None:
    _log.warning("%s, so edge keeps nothing between runs; set EDGE_HOME to a folder that edge may write.", why)


def curves_dir() -> Path:
    """Return the folder of the cost curves that `edge profile` measures. It exists once one was measured."""
    return cache_dir() / "curves"


def expanded(path: str) -> Path:
    """A path whose `~` is a home folder; as it is, and thus of no file, where nobody has that home."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path's raises there


def is_folder(path: Path) -> bool:
    """True if the path is a folder that this user can access."""
    try:
        return path.is_dir()
    except OSError:
        return False


# Making and reading


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents; those of the cache are private to their owner. OSError if it cannot be
    created."""
    missing = [folder]
    while not (above := missing[-1].parent).exists():
        missing.append(above)
    for each in reversed(missing):
        each.mkdir(0o700 if _in_cache(each) else 0o777, exist_ok=True)


def for_owner(path: str | Path, flags: int) -> int:
    """An opener for `open`: a file that it makes is for its owner alone. A link is not followed, a pipe not waited
    for."""
    plain = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    return os.open(path, flags | plain, 0o600)


def open_own(path: Path, *, writing: bool = False) -> BinaryIO:
    """Open a file of the cache to read it, or to write to it, too. OSError if it cannot be opened, is no regular file,
    or belongs to another user, which a warning says."""
    descriptor = for_owner(path, (os.O_RDWR if writing else os.O_RDONLY) | getattr(os, "O_BINARY", 0))
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            code = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
            raise OSError(code, os.strerror(code), str(path))
        if not _is_own(found, path):
            raise FileNotFoundError(f"{path} is no file of this user's")
        return os.fdopen(descriptor, "r+b" if writing else "rb")
    except BaseException:
        os.close(descriptor)
        raise


def is_own(path: Path) -> bool:
    """True if a file or folder exists and belongs to this user. A warning names one that belongs to another user."""
    try:
        return _is_own(path.stat(), path)
    except OSError:
        return False


def read_own(path: Path) -> str:
    """Return the text of a small file of the cache. OSError as for `open_own`; ValueError if it is no text, or not
    small."""
    with open_own(path) as file:
        content = file.read(SMALL + 1)
    if len(content) > SMALL:
        raise ValueError(f"{path} is too large")
    return content.decode()


def read_own_json(path: Path) -> Any:
    """Return the content of a small JSON file of the cache; None if it is missing or cannot be read."""
    try:
        return json.loads(read_own(path))
    except (OSError, ValueError, RecursionError):
        return None


def _is_own(found: os.stat_result, path: Path) -> bool:
    own = sys.platform == "win32" or found.st_uid == os.geteuid()
    if not own:
        _warn_of(path)
    return own


@cache
def _warn_of(path: Path) -> None:
    _log.warning("%s belongs to another user and is not used.", path)


def _in_cache(path: Path) -> bool:
    try:
        return path.is_relative_to(cache_dir())
    except InputError:
        return False


# Writing


def make_file(path: Path, mode: int) -> int:
    """Create a file and return its descriptor for writing. An existing file of this name is removed first: an earlier
    process of this number may have left it, or it is a link, which would lead elsewhere. OSError if it cannot be
    created."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    return os.open(path, flags | getattr(os, "O_BINARY", 0), mode)  # of Windows, which changes the ends of lines else


def part_of(path: Path) -> Path:
    """Return the temporary path under which this thread writes a file until it is complete."""
    return path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.part")  # see `_PART`


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of another file, which replaces `path` once it is written; a missing folder is created. Several
    threads and processes may do so at the same time. In the cache the file is private to its owner, and replaces a
    folder too. OSError if it cannot be written."""
    part, cached = part_of(path), _in_cache(path)
    try:
        make_folder(path.parent)
        os.close(make_file(part, 0o600 if cached else 0o666))
    except OSError as e:
        if cached and e.errno in UNWRITABLE and not path.is_relative_to(NOWHERE):
            _warn_without(f"The cache folder {cache_dir()} cannot be written ({e.strerror})")
        raise
    try:
        yield part
        if cached and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        part.replace(path)
    finally:
        with contextlib.suppress(OSError):  # why it could not be written says more
            part.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """Replace a file's content at once: see `replacing`."""
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


# Keeping what is used


def mark_used(entry: Path) -> None:
    """An entry of a folder of the cache was used: `drop_oldest` keeps it longest."""
    with contextlib.suppress(OSError):
        os.utime(entry)


def drop_oldest(
    folder: Path,
    kept: int = KEPT,
    *,
    made: Path | None = None,
    room: int | None = None,
    ours: Callable[[str], object] = bool,
    used: Callable[[Path], Path] = Path,
) -> None:
    """Keep `kept` entries of a folder of the cache, files or folders: those that were used last. What processes that
    are no more did not finish writing goes too.

    Another process may do the same at a time: what one has removed is no fault to the other.

    made: an entry that was just made, and stays. room: bytes that files may have in all. ours: whether an entry of
    this name counts. used: the file whose time
    says when an entry was used last, where there is one.
    """
    found, now = list[tuple[bool, int, Path]](), time.time_ns()
    drop_parts(folder)
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            with contextlib.suppress(OSError):
                at = entry.lstat().st_mtime_ns
                if not re.fullmatch(_PART, entry.name) and ours(entry.name):
                    mark = used(entry) if used(entry).exists() else entry
                    at = mark.lstat().st_mtime_ns
                    if at > now:  # a clock was wrong: it would stay for ever, and others go
                        at = now - _UNKNOWN_NS
                        os.utime(mark, ns=(at, at))
                    found.append((entry == made, at, entry))
    left = sys.maxsize if room is None else room
    for place, (_, _, entry) in enumerate(sorted(found, reverse=True)):
        with contextlib.suppress(OSError):
            left -= entry.lstat().st_size
        if place >= kept or (left < 0 and place):
            _remove(entry)


def drop_parts(folder: Path) -> None:
    """Remove from a folder of the cache what processes that are no more did not finish writing."""
    now = time.time_ns()
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            with contextlib.suppress(OSError):
                at, part = entry.lstat().st_mtime_ns, re.fullmatch(_PART, entry.name)
                if part and (abs(now - at) > _STALE_NS or not is_running(int(part[1]))):
                    _remove(entry)


def _remove(entry: Path) -> None:
    with contextlib.suppress(OSError):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink()


def is_running(pid: int) -> bool:
    """True if a process with this number exists. Always true on Windows, where `os.kill` would end the process."""
    if sys.platform == "win32":  # os.kill would end it
        return True
    try:
        os.kill(pid, 0)
    except OverflowError:  # no process has such a number
        return False
    except OSError as e:
        return not isinstance(e, ProcessLookupError)
    return True
