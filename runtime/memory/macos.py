"""Memory and processor on macOS, by functions of its C library.

Source: Apple's headers mach/task_info.h, mach/host_info.h, mach/vm_statistics.h and sys/sysctl.h. Not yet run on macOS:
the tests compare it with the documented layouts.
"""

from __future__ import annotations

import ctypes
import mmap

from edge.runtime.memory.process import Held

TASK_VM_INFO = 22
HOST_VM_INFO64 = 4
WORD = 4  # bytes that sizes of these structures are counted in
LONGEST_NAME = 256


class TaskInfo(ctypes.Structure):
    """task_vm_info as of its third revision, which later ones begin with."""

    _fields_ = (
        ("virtual_size", ctypes.c_uint64),
        ("regions", ctypes.c_int32 * 2),  # their number, and the size of a page
        ("resident_size", ctypes.c_uint64),
        ("resident_size_peak", ctypes.c_uint64),
        ("parts", ctypes.c_uint64 * 14),  # by what pages are for, each now and at its peak
        ("footprint", ctypes.c_uint64),
        ("addresses", ctypes.c_uint64 * 2),
        ("footprint_peak", ctypes.c_int64),
        ("ledgers", ctypes.c_int64 * 20),
    )


class PageCounts(ctypes.Structure):
    """vm_statistics64 as of its first version with 38 words, which later ones begin with."""

    _fields_ = (
        ("free", ctypes.c_uint32),
        ("active", ctypes.c_uint32),
        ("inactive", ctypes.c_uint32),
        ("wired", ctypes.c_uint32),
        ("events", ctypes.c_uint64 * 9),  # pages zeroed, moved and looked up since the start
        ("purgeable", ctypes.c_uint32),
        ("speculative", ctypes.c_uint32),
        ("traffic", ctypes.c_uint64 * 4),  # pages compressed and swapped since the start
        ("compressor", ctypes.c_uint32),
        ("throttled", ctypes.c_uint32),
        ("external", ctypes.c_uint32),
        ("internal", ctypes.c_uint32),
        ("in_compressor", ctypes.c_uint64),
    )


def held() -> Held | None:
    """What this process holds, its physical footprint as private bytes; None where macOS does not tell."""
    system, found = ctypes.CDLL(None), TaskInfo()
    count = ctypes.c_uint32(ctypes.sizeof(found) // WORD)
    system.task_info.argtypes = (ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p)
    if system.task_info(_this_task(system), TASK_VM_INFO, ctypes.byref(found), ctypes.byref(count)):
        return None
    peak = max(found.footprint, found.footprint_peak)  # which older kernels leave at 0
    return Held(found.footprint, peak, found.resident_size, found.resident_size_peak)


def _this_task(system: ctypes.CDLL) -> int:
    """What the macro mach_task_self() stands for."""
    return ctypes.c_uint32.in_dll(system, "mach_task_self_").value


def available() -> int | None:
    """Bytes of memory that could be taken without swapping; None where macOS does not tell."""
    system, found = ctypes.CDLL(None), PageCounts()
    count = ctypes.c_uint32(ctypes.sizeof(found) // WORD)
    system.mach_host_self.restype = ctypes.c_uint32
    system.host_statistics64.argtypes = (ctypes.c_uint32, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
    host = system.mach_host_self()
    failed = system.host_statistics64(host, HOST_VM_INFO64, ctypes.byref(found), ctypes.byref(count))
    return None if failed else int(found.free + found.inactive) * mmap.PAGESIZE


def processor() -> str | None:
    """The processor's name; None where macOS does not tell."""
    system, size = ctypes.CDLL(None), ctypes.c_size_t(LONGEST_NAME)
    found = ctypes.create_string_buffer(LONGEST_NAME)
    system.sysctlbyname.argtypes = (*[ctypes.c_void_p] * 4, ctypes.c_size_t)
    failed = system.sysctlbyname(b"machdep.cpu.brand_string", found, ctypes.byref(size), None, 0)
    return None if failed else found.value.decode(errors="replace").strip() or None
