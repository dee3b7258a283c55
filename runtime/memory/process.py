"""What this process holds: private memory, which the system cannot take back, and resident memory next to it."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

MIB = 2**20
STATUS = "/proc/self/status"
LONGEST = 2**14  # bytes of that file, which has 1,500

_peak = 0  # most private bytes that `held` has found; Linux keeps no peak of them


class Held(NamedTuple):
    """Bytes that a process holds, now and at its peak so far: private ones, and all that are resident (RSS)."""

    private: int
    peak_private: int
    rss: int
    peak_rss: int


def held() -> Held | None:
    """What this process holds; None where the system does not tell.

    Private bytes are those that the system cannot take back: on Linux anonymous and shared memory, in RAM or in swap
    (RssAnon, RssShmem and VmSwap of /proc), on macOS the physical footprint, on Windows the private commit charge. Code
    of libraries and mapped weights are resident and not private: the system drops them when it needs room, and reads
    them again from their files.

    Linux keeps no peak of private memory. There `peak_private` is the most that any call of this function has found.
    The runtime calls it when a model has loaded, when sound was encoded and when an answer ends, while the KV cache and
    the activations' arena are still there. Memory that came and went in between is missed; docs/lab/memory.md says how
    much.
    """
    if sys.platform == "win32":
        from edge.runtime.memory import windows

        return windows.held()
    if sys.platform == "darwin":
        from edge.runtime.memory import macos

        return macos.held()
    return _linux() if sys.platform == "linux" else None


def _linux() -> Held | None:
    global _peak
    try:
        file = os.open(STATUS, os.O_RDONLY)  # 16 us in all, where Path.read_text takes 45
    except OSError:
        return None
    try:
        lines = os.read(file, LONGEST).splitlines()
    finally:
        os.close(file)
    sizes = {line.split()[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith(b" kB")}
    if not sizes.keys() >= {b"RssAnon:", b"VmHWM:"}:  # kernels before 4.5
        return None
    private = sum(sizes.get(name, 0) for name in (b"RssAnon:", b"RssShmem:", b"VmSwap:"))
    _peak = max(_peak, private)
    return Held(private, _peak, sizes[b"VmRSS:"], sizes[b"VmHWM:"])


def private_bytes() -> int:
    """Private bytes of this process now; 0 where the system does not tell."""
    found = held()
    return 0 if found is None else found.private


def release_freed() -> None:
    """Give memory that was freed, but that the C library keeps for later, back to the system. glibc only."""
    if sys.platform == "linux":
        import ctypes

        held()  # it was part of the peak
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
