"""How much memory this process has used, and giving back what it need not hold."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

MIB = 2**20
SMALL = 2**18  # bytes of a library's part that are not worth the while of giving back
ENTRY = 8  # bytes of /proc/self/pagemap for a page
_inherited: int | None = None  # KiB that `getrusage` had to say when it was first asked, where not this process's own


class Mapping(NamedTuple):
    """A file, or a part of one, in this process's memory."""

    start: int
    end: int
    mode: str
    file: str


def peak_rss_mb() -> float | None:
    """The largest resident set of this process so far, in MiB; None where the system does not tell.

    On Linux from `/proc` as long as what `getrusage` reports there may be the memory of the process that started this
    one, which it begins with; reading `/proc` takes 50 us, a fiftieth of what a small translator's sentence does.
    """
    global _inherited
    if sys.platform == "win32":
        from edge.runtime import windows

        found = windows.resident()
        return None if found is None else found.peak / MIB
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.platform == "darwin":  # in bytes there, and in KiB elsewhere
        return used / MIB
    if sys.platform == "linux" and (_inherited is None or used <= _inherited):
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                own = int(line.split()[1])
                if _inherited is None:
                    _inherited = used if used > own else 0
                return own / 1024
    return used / 1024


def rss_bytes() -> int:
    """What this process has resident now; 0 where the system does not tell."""
    if sys.platform == "win32":
        from edge.runtime import windows

        found = windows.resident()
        return 0 if found is None else found.now
    if sys.platform == "darwin":
        from edge.runtime import macos

        return macos.resident() or 0
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def release_mapped(path: Path) -> None:
    """Take the pages of a mapped file out of this process's memory; what is read again comes back page by page.

    onnxruntime maps a bundle's weights, reads them all once to pack them for the kernels, and afterwards looks up only
    rows of the embedding: without this they would count twice. Linux only; elsewhere nothing happens.
    """
    name = str(path.resolve())
    for mapping in _mappings():
        if mapping.file == name:  # private mappings that nobody writes to: nothing can be lost
            _advise(mapping.start, mapping.end, "MADV_DONTNEED")
            _advise(mapping.start, mapping.end, "MADV_RANDOM")  # no neighbours of a row that is looked up


def libraries() -> frozenset[Mapping]:
    """Code and constants of the libraries that are loaded now. While one is being loaded, it is not told from others,
    so this is asked where no thread loads any: when modules are imported."""
    return frozenset(
        mapping
        for mapping in _mappings()
        if mapping.mode in ("r-xp", "r--p") and ".so" in mapping.file and mapping.end - mapping.start >= SMALL
    )


def release_code(loaded: frozenset[Mapping]) -> None:
    """Take code and constants of libraries out of this process's memory; what is used again comes back from the
    system's cache of their files, in runs of 64 KiB.

    Importing numpy and onnxruntime touches 25 MB of their files, opening a session 17, running one 9, and most of it is
    not the same. Linux only; elsewhere nothing happens.

    loaded: what `libraries` said.
    """
    if not loaded:
        return
    with contextlib.suppress(OSError), Path("/proc/self/pagemap").open("rb", buffering=0) as pages:
        for mapping in _mappings():
            if mapping in loaded and not has_own_pages(pages.fileno(), mapping.start, mapping.end):
                _advise(mapping.start, mapping.end, "MADV_DONTNEED")


def has_own_pages(pages: int, start: int, end: int) -> bool:
    """Whether a private mapping of a file has pages that are not the file's, such as addresses that were relocated."""
    size = mmap.PAGESIZE
    entries = np.frombuffer(os.pread(pages, (end - start) // size * ENTRY, start // size * ENTRY), np.uint64)
    there = entries >> np.uint64(62) != 0  # in memory, or swapped out
    return bool((there & (entries >> np.uint64(61) & np.uint64(1) == 0)).any())


def _mappings() -> Iterator[Mapping]:
    """This process's mappings of files; none outside Linux."""
    if sys.platform != "linux":
        return
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        if "/" in line:
            addresses, mode, _, _, _, file = line.split(maxsplit=5)
            start, end = addresses.split("-")
            yield Mapping(int(start, 16), int(end, 16), mode, file)


def _advise(start: int, end: int, advice: str) -> None:
    _madvise()(start, end - start, getattr(mmap, advice))


@cache
def _madvise() -> Callable[[int, int, int], int]:
    """madvise(2)."""
    import ctypes

    found = ctypes.CDLL(None).madvise
    found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return found


def release_freed() -> None:
    """Give memory that was freed, but that the C library keeps for later, back to the system. glibc only."""
    if sys.platform == "linux":
        import ctypes

        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
