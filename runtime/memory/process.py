"""The memory of this process: private, which the system cannot take back, and resident."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from edge.runtime.memory.held import Held

MIB = 2**20
MB = 10**6  # bytes: the unit of memory in what people and scripts read
STATUS = "/proc/self/status"
LONGEST = 2**14  # bytes of that file, which has 1,500

_peak = 0  # the maximum that `held` has found of private bytes


def held() -> Held | None:
    """The memory of this process; None where the system does not tell.

    Private bytes are on Linux anonymous and shared memory, in RAM or in swap (RssAnon, RssShmem and VmSwap of /proc),
    on macOS the physical footprint, on Windows the private commit charge. Linux keeps no peak of them: there
    `peak_private` is the maximum of all calls so far, which the runtime makes when a model has loaded, when sound was
    encoded and when an answer ends (docs/lab/memory.md).
    """
    if sys.platform == "win32":
        return _windows()
    if sys.platform == "darwin":
        from edge.runtime.memory import macos

        return macos.held()
    return _linux() if sys.platform == "linux" else None


def _windows() -> Held | None:
    import psutil

    try:
        found = psutil.Process().memory_info()
    except (psutil.Error, OSError):
        return None
    return Held(found.private, found.peak_pagefile, found.wset, found.peak_wset)


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


@contextmanager
def repeated(look: Callable[[], object], every: float) -> Iterator[None]:
    """Call `look` every `every` seconds, in a thread of its own, as long as the block runs."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(every):
            look()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def watching(every: float = 0.02) -> AbstractContextManager[None]:
    """Look at the private bytes of this process every `every` seconds, so that `held` knows a peak between calls."""
    return repeated(held, every)


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
