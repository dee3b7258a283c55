"""Files that are mapped into memory, and protection against changes by other programs.

A page past the end of a file that was cut short cannot be read: the system ends the process (SIGBUS). Bytes that were
changed are read as they are now. Both are refused here: a file is what it was when it was opened, or an error. What
runs on it is compared before and after. The library of `edge_kernels`, where it is installed, also keeps a process
alive whose file is cut short while it reads (Linux).
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter_ns
from typing import Any, TypeVar

from edge.errors import BundleError, EdgeError

PACKAGE = "edge_kernels"
NONE = -1  # instead of a guard's number
ANY = ctypes.c_int(-1)  # of all guards
SELDOM_NS = 500_000
COPY_AGAIN = "copy or export the bundle again"

T = TypeVar("T")
_known: weakref.WeakValueDictionary[tuple[int, int], MappedFile] = weakref.WeakValueDictionary()
_opening = threading.Lock()


class MappedFile:
    """A file that this process has mapped into memory; `mapped_file` makes one. It is checked as long as this object
    lives.

    advice: what to do where it was changed. timed: whether another time of its last change is a change. error: what is
    raised.
    """

    def __init__(self, path: Path, advice: str, timed: bool, error: type[EdgeError]) -> None:
        self.path, self.error, self._advice, self._timed = path, error, advice, timed
        if sys.platform == "win32":  # which lets nobody cut a mapped file short, nor rename a folder with an open file
            self._stat: Callable[[], os.stat_result] = partial(os.stat, path)
            self.guard = NONE
        else:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._stat = partial(os.fstat, file)
            library = _library()
            self.guard = NONE if library is None else library.edge_guard(file, timed)
            weakref.finalize(self, _release, file, self.guard).atexit = False
        was = self._stat()
        self._size, self._time = was.st_size, was.st_mtime_ns

    @property
    def changed(self) -> bool:
        """True if the file has changed since it was opened, or pages past its present end were read."""
        now = self._stat()
        if now.st_size != self._size or (self._timed and now.st_mtime_ns != self._time):
            return True
        library = None if self.guard == NONE else _library()
        return library is not None and bool(library.edge_changed(self.guard))

    def check(self) -> None:
        """Raise the error if the file was changed."""
        if self.changed:
            raise self.error(f"{self.path} was changed or cut short while it was open; {self._advice}.")


def mapped_file(
    path: Path, advice: str = COPY_AGAIN, *, timed: bool = True, error: type[EdgeError] = BundleError
) -> MappedFile:
    """Return the file as it is now. All readers share one object until the file changes. OSError where it cannot be
    read."""
    stat = path.stat()
    key = stat.st_dev, stat.st_ino
    with _opening:
        found = _known.get(key)
        if found is None or found.changed:
            found = _known[key] = MappedFile(path, advice, timed, error)
        return found


def check(files: Sequence[MappedFile]) -> None:
    """Raise the error of the first of the files that was changed."""
    for file in files:
        file.check()


def check_all(error: type[EdgeError]) -> None:
    """Raise the error if any mapped file was changed whose changes are errors of this class."""
    check([file for file in list(_known.values()) if file.error is error])


@contextmanager
def unchanged(files: Sequence[MappedFile]) -> Iterator[None]:
    """Check files before and after the code in this context. Where one was changed, that error replaces any other."""
    check(files)
    try:
        yield
    except Exception:
        check(files)
        raise
    check(files)


def reading(files: Sequence[MappedFile], run: Callable[[], T]) -> Callable[[], T]:
    """Return `run`, which reads the files many times, with checks around each run: an error is raised if a file was
    changed.

    Without the library, files are checked before and after each run, because a run could end the process. Where the
    library keeps the process alive, they are checked after runs, twice in a millisecond at most: that takes 3 us
    between two steps, of which small models' take 50 (2 cores of a Zen 5).
    """
    library = _library()
    if library is None or any(file.guard == NONE for file in files):

        def checked() -> T:
            check(files)
            try:
                made = run()
            except Exception:
                check(files)
                raise
            check(files)
            return made

        return checked
    any_changed: Callable[[Any], int] = library.edge_changed  # of all files in one call
    torn, looked = ctypes.c_int.in_dll(library, "edge_torn"), 0
    known = torn.value

    def guarded() -> T:
        nonlocal looked
        try:
            made = run()
        except Exception:
            check(files)
            raise
        now = perf_counter_ns()
        if now - looked > SELDOM_NS or torn.value != known:
            looked = now
            if any_changed(ANY):
                check(files)
        return made

    return guarded


def _release(file: int, guard: int) -> None:
    library = _library()
    if guard != NONE and library is not None:
        library.edge_unguard(guard)
    os.close(file)


@cache
def _library() -> Any:
    """The library that keeps a process alive; None where it is not installed, or older."""
    if find_spec(PACKAGE) is None:
        return None
    try:
        library = ctypes.CDLL(str(import_module(PACKAGE).LIBRARY))
        library.edge_guard.restype = library.edge_changed.restype = ctypes.c_int
        library.edge_unguard.restype = None
        ctypes.c_int.in_dll(library, "edge_torn")
    except (OSError, AttributeError, ValueError):  # `find_kernels` says so
        return None
    return library
