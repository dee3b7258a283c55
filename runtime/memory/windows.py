"""Memory and processor on Windows, by functions of kernel32 and the registry.

Source: Microsoft's documentation of GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS_EX, GlobalMemoryStatusEx and
MEMORYSTATUSEX. Not yet run on Windows: the tests compare it with the documented layouts.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys

from edge.runtime.memory.process import Held

PROCESSOR = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"  # in HKEY_LOCAL_MACHINE


class ProcessMemoryCounters(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS_EX; a working set is what other systems call the resident set."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("page_faults", ctypes.c_uint32),
        ("peak_working_set", ctypes.c_size_t),
        ("working_set", ctypes.c_size_t),
        ("peak_paged_pool", ctypes.c_size_t),
        ("paged_pool", ctypes.c_size_t),
        ("peak_non_paged_pool", ctypes.c_size_t),
        ("non_paged_pool", ctypes.c_size_t),
        ("page_file", ctypes.c_size_t),
        ("peak_page_file", ctypes.c_size_t),
        ("private", ctypes.c_size_t),
    )


class MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("total", ctypes.c_uint64),
        ("available", ctypes.c_uint64),
        ("total_page_file", ctypes.c_uint64),
        ("available_page_file", ctypes.c_uint64),
        ("total_virtual", ctypes.c_uint64),
        ("available_virtual", ctypes.c_uint64),
        ("available_extended", ctypes.c_uint64),
    )


def held() -> Held | None:
    """What this process holds, its private commit charge as private bytes; None where Windows does not tell."""
    kernel = ctypes.CDLL("kernel32")
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    kernel.K32GetProcessMemoryInfo.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)
    found = ProcessMemoryCounters(size=ctypes.sizeof(ProcessMemoryCounters))
    if not kernel.K32GetProcessMemoryInfo(kernel.GetCurrentProcess(), ctypes.byref(found), found.size):
        return None
    return Held(found.private, found.peak_page_file, found.working_set, found.peak_working_set)


def memory() -> tuple[int | None, int | None]:
    """Bytes of memory that the machine has, and that could be taken without swapping; None where Windows does not
    tell."""
    kernel = ctypes.CDLL("kernel32")
    kernel.GlobalMemoryStatusEx.argtypes = (ctypes.c_void_p,)
    found = MemoryStatus(size=ctypes.sizeof(MemoryStatus))
    return (found.total, found.available) if kernel.GlobalMemoryStatusEx(ctypes.byref(found)) else (None, None)


def processor() -> str | None:
    """The processor's name; None where the registry has none."""
    if sys.platform == "win32":
        import winreg

        with contextlib.suppress(OSError), winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, PROCESSOR) as key:
            return str(winreg.QueryValueEx(key, "ProcessorNameString")[0]).strip() or None
    return None
