"""Memory of a process on macOS, by functions of its C library: psutil does not tell the physical footprint.

Source: Apple's header mach/task_info.h. Not yet run on macOS: the tests compare it with the documented layout.
"""

from __future__ import annotations

import ctypes

from edge.runtime.memory.held import Held

TASK_VM_INFO = 22
WORD = 4  # bytes that the structure's size is counted in


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


def held() -> Held | None:
    """Return the memory of this process, with its physical footprint as private bytes; None where macOS does not
    tell."""
    system, found = ctypes.CDLL(None), TaskInfo()
    count = ctypes.c_uint32(ctypes.sizeof(found) // WORD)
    system.task_info.argtypes = (ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p)
    if system.task_info(_this_task(system), TASK_VM_INFO, ctypes.byref(found), ctypes.byref(count)):
        return None
    peak = max(found.footprint, found.footprint_peak)  # which older kernels leave at 0
    return Held(found.footprint, peak, found.resident_size, found.resident_size_peak)


def _this_task(system: ctypes.CDLL) -> int:
    """Value of the macro mach_task_self()."""
    return ctypes.c_uint32.in_dll(system, "mach_task_self_").value
