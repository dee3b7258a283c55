"""Memory in pages of 2 MiB for a session's weights.

A step reads all weights once: in pages of 4 KiB these are more addresses than a processor's TLB has. onnxruntime takes
each packed matrix from the C library, whose blocks the kernel does not put into large pages by itself: these are
prepared. That sets the C library's thresholds for the whole process. `EDGE_HUGE_PAGES=1` in the environment asks for
it, and the command `edge` does so in its own process.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

ASKED = "EDGE_HUGE_PAGES"
PAGE = 2**21
LEAST = 2**24  # bytes of weights below which 4 KiB pages do: TLBs have about 3,000 entries
# glibc gives each thread heaps of 64 MiB: two blocks and a stop fill one, and the next block begins the next.
BLOCK = 30 * 2**20
BLOCKS = 2
STOP = 2**16  # bytes after freed blocks, which keep the heap from being freed with them
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
LARGEST = 2**25  # bytes of a block that comes from a heap
NEVER = -1  # what is free at a heap's end is given back
# Bytes that may be free there afterwards. With glibc's own 64 MiB a thread's heap keeps the memory of a session that is
# gone: 55 MiB of SmolLM2-135M.
KEPT = 2**22
OWN_SETTINGS = ("MALLOC_MMAP_", "MALLOC_TRIM_")  # what variables that set the same begin with
TUNABLES, OF_MALLOC = "GLIBC_TUNABLES", "glibc.malloc."


@contextmanager
def huge_pages(size: int) -> Iterator[None]:
    """Make the first `size` bytes that this thread takes within this context from the C library come in pages of 2 MiB,
    where the process asked for it. Only addresses are reserved, no memory. Linux with glibc only."""
    if os.environ.get(ASKED) != "1" or size < LEAST or not _can():
        yield
        return
    _libc().mallopt(M_MMAP_THRESHOLD, LARGEST)
    _libc().mallopt(M_TRIM_THRESHOLD, NEVER)
    stops = _make_ready(size)
    try:
        yield
    finally:
        for stop in stops:
            _libc().free(stop)
        _libc().mallopt(M_TRIM_THRESHOLD, KEPT)


def _make_ready(size: int) -> list[int]:
    libc, blocks, stops = _libc(), list[int](), list[int]()
    while len(blocks) * BLOCK < size:
        taken = [block for _ in range(BLOCKS) if (block := libc.malloc(BLOCK))]
        blocks += taken
        if len(taken) < BLOCKS:  # addresses are limited, too
            break
        stops.append(libc.malloc(STOP))
    for start, end in _joined(blocks):
        first, last = -(-start // PAGE) * PAGE, end // PAGE * PAGE
        libc.madvise(first, last - first, mmap.MADV_HUGEPAGE)
    for block in blocks:
        libc.free(block)
    return stops


def _joined(blocks: list[int]) -> list[tuple[int, int]]:
    """Starts and ends of blocks of memory; adjacent blocks are joined."""
    found: list[tuple[int, int]] = []
    for block in sorted(blocks):
        if found and block - found[-1][1] < mmap.PAGESIZE:
            found[-1] = found[-1][0], block + BLOCK
        else:
            found.append((block, block + BLOCK))
    return found


@cache
def _can() -> bool:
    """True on Linux with glibc, if no environment variable sets glibc's allocator."""
    own = any(name.startswith(OWN_SETTINGS) for name in os.environ) or OF_MALLOC in os.environ.get(TUNABLES, "")
    if sys.platform != "linux" or own:
        return False
    return hasattr(_libc(), "gnu_get_libc_version") and hasattr(mmap, "MADV_HUGEPAGE")


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.free.restype, libc.free.argtypes = None, (ctypes.c_void_p,)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return libc
