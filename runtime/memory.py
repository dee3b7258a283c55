"""How much memory this process has used, and giving back what it need not hold."""

from __future__ import annotations

import os
import sys
from pathlib import Path

MIB = 2**20
_inherited: int | None = None  # KiB that `getrusage` had to say when it was first asked, where not this process's own


def peak_rss_mb() -> float | None:
    """The largest resident set of this process so far, in MiB; None where the system does not tell.

    On Linux from `/proc` as long as what `getrusage` reports there may be the memory of the process that started this
    one, which it begins with; reading `/proc` takes 50 us, a fiftieth of what a small translator's sentence does.
    """
    global _inherited
    if sys.platform == "win32":
        return None
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.platform == "darwin":
        return used / MIB
    if sys.platform == "linux" and (_inherited is None or used <= _inherited):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                own = int(line.split()[1])
                if _inherited is None:
                    _inherited = used if used > own else 0
                return own / 1024
    return used / 1024


def rss_bytes() -> int:
    """What this process has resident now; 0 where the system does not tell."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def release_mapped(path: Path) -> None:
    """Take the pages of a mapped file out of this process's memory; what is read again comes back page by page.

    onnxruntime maps a bundle's weights, reads them all once to pack them for the kernels, and afterwards looks up only
    rows of the embedding: without this they would count twice. Linux only; elsewhere nothing happens.
    """
    if sys.platform != "linux":
        return
    import ctypes
    import mmap

    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    name = str(path.resolve())
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        fields = line.split(maxsplit=5)
        if fields[-1] == name:  # private mappings that nobody writes to: nothing can be lost
            start, end = (int(edge, 16) for edge in fields[0].split("-"))
            madvise(start, end - start, mmap.MADV_DONTNEED)
            madvise(start, end - start, mmap.MADV_RANDOM)  # no neighbours of a row that is looked up


def release_freed() -> None:
    """Give memory that was freed, but that the C library keeps for later, back to the system. glibc only."""
    if sys.platform == "linux":
        import ctypes

        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
