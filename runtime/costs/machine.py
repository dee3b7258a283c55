"""The machine that measurements are made on: its description, the load by other processes, and the energy it takes."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import onnxruntime as ort

from edge.children import run
from edge.runtime.costs.record import Device, Usage
from edge.runtime.kernels.library import find_kernels
from edge.runtime.memory.limit import elsewhere, memory_bytes
from edge.runtime.providers import PROVIDERS
from edge.runtime.providers.cores import usable_cores

SYS = Path("/sys/class")
PROCESSOR = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"  # in HKEY_LOCAL_MACHINE


def describe(provider: str, threads: int) -> Device:
    """Describe this machine, with the provider's name and the number of threads that are measured."""
    traits = PROVIDERS[provider].traits if provider in PROVIDERS else {}  # a program may bring its own
    return Device(
        name=platform.node() or "unnamed",
        cpu=cpu_name(),
        cores=usable_cores(),
        memory_bytes=memory_bytes(),
        os=f"{platform.system()} {platform.release()} {platform.machine()}",
        runtime=f"onnxruntime {ort.__version__}{_kernels(traits)}",
        provider=traits.get("onnxruntime", provider),
        threads=threads,
    )


def _kernels(traits: Mapping[str, str]) -> str:
    """Whose kernels run, where they are not all onnxruntime's."""
    kernels = find_kernels() if "kernels" in traits else None
    return "" if kernels is None else f" with edge-lm-kernels ({kernels.form})"


def cpu_name() -> str:
    """Name of the processor, as the system reports it."""
    found: str | None = None
    if sys.platform == "darwin":
        with contextlib.suppress(OSError):
            found = run(["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"], 10).output.strip()
    elif sys.platform == "win32":
        import winreg

        with contextlib.suppress(OSError), winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, PROCESSOR) as key:
            found = str(winreg.QueryValueEx(key, "ProcessorNameString")[0]).strip()
        found = found or os.environ.get("PROCESSOR_IDENTIFIER")
    else:
        with contextlib.suppress(OSError):
            fields = _fields(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
            names = ("model name", "Hardware", "cpu model", "uarch")
            found = next((fields[name] for name in names if fields.get(name)), None)
    return found or platform.machine() or "unknown"


def _fields(text: str) -> dict[str, str]:
    """Lines like `name : value`; of the same name, the first."""
    pairs = (line.partition(":") for line in reversed(text.splitlines()))
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def available_bytes() -> int | None:
    """Bytes of memory that are available without swapping; None where the system does not tell."""
    if sys.platform in ("win32", "darwin"):
        return elsewhere("available") or memory_bytes()
    with contextlib.suppress(OSError, KeyError, ValueError, IndexError):
        return int(_fields(Path("/proc/meminfo").read_text(encoding="utf-8"))["MemAvailable"].split()[0]) * 1024
    return memory_bytes()


class Neighbours:
    """The share of the machine that other processes take, from now on."""

    def __init__(self) -> None:
        self._busy, self._own, self._start = _busy_s(), _own_s(), time.monotonic()

    def share(self) -> float | None:
        """Their CPU time since the start over that of all cores; None where the system does not tell."""
        busy = _busy_s()
        if busy is None or self._busy is None:
            return None
        wall = (time.monotonic() - self._start) * (os.cpu_count() or 1)
        foreign = busy - self._busy - (_own_s() - self._own)
        return min(1.0, max(0.0, foreign / wall)) if wall > 0 else 0.0


def _busy_s() -> float | None:
    """CPU seconds of all processes so far; None where the system does not tell."""
    try:
        counts = Path("/proc/stat").read_text(encoding="utf-8").split()[1:9]
        user, nice, system, _, _, irq, softirq, steal = map(int, counts)
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    """CPU seconds of this process and of its children."""
    return sum(os.times()[:4])


class Energy:
    """A meter of the machine's energy in joules: of its processors by RAPL's counters, or of the whole device by its
    battery.

    of: the metered part; None where there is no meter (many systems let only root read RAPL).

    Source: Linux, Documentation/power/powercap/powercap.rst and Documentation/ABI/testing/sysfs-class-power.
    """

    def __init__(self, sys_class: Path = SYS, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._zones = list(_packages(sys_class / "powercap"))
        self._battery = None if self._zones else _discharging(sys_class / "power_supply")
        self.of: str | None = None
        if self._zones:
            self.of = ", ".join(_text(zone / "name") for zone in self._zones)
        elif self._battery is not None:
            self.of = "battery"

    @contextlib.contextmanager
    def metered(self) -> Iterator[list[float]]:
        """Yield a list that has the joules afterwards, where there is a meter. A battery's are the mean of its power at
        both ends over the time between."""
        found: list[float] = []
        before, start = self._reading(), self._clock()
        yield found
        after, end = self._reading(), self._clock()
        if not before or not after:
            return
        if self._zones:
            passed = zip(self._zones, before, after, strict=True)
            found.append(sum(_passed(zone, first, last) for zone, first, last in passed) / 1e6)
        else:
            found.append((before[0] + after[0]) / 2 * (end - start))

    def usage(self, phase: str, tokens: int, wall_s: float, cpu_s: float, joules: Sequence[float]) -> Usage:
        """Make the record of a phase, with the joules that were metered in it."""
        return Usage(phase, tokens, wall_s, cpu_s, sum(joules) if joules else None, self.of if joules else None)

    def _reading(self) -> list[float]:
        """Microjoules of each processor so far, or the battery's watts; empty where there is no meter (any more)."""
        with contextlib.suppress(OSError, ValueError):
            if self._zones:
                return [float(_text(zone / "energy_uj")) for zone in self._zones]
            if self._battery is not None:
                return [_watts(self._battery)]
        return []


def _packages(powercap: Path) -> Iterator[Path]:
    """The RAPL zones of whole processors that may be read."""
    for zone in sorted(powercap.glob("intel-rapl:*")):  # AMD's too
        with contextlib.suppress(OSError, ValueError):
            if zone.name.count(":") == 1 and int(_text(zone / "energy_uj")) >= 0 and _text(zone / "name"):
                yield zone


def _passed(zone: Path, before: float, after: float) -> float:
    """Microjoules between two readings of a counter, which may have overflowed once."""
    return after - before if after >= before else after - before + int(_text(zone / "max_energy_range_uj"))


def _discharging(supplies: Path) -> Path | None:
    """A battery that runs the device now and tells its power."""
    for supply in sorted(supplies.glob("*")):
        with contextlib.suppress(OSError, ValueError):
            if _text(supply / "type") == "Battery" and _text(supply / "status") == "Discharging" and _watts(supply) > 0:
                return supply
    return None


def _watts(supply: Path) -> float:
    """Power of a battery, from microwatts, or from microvolts and microamperes."""
    if (supply / "power_now").exists():
        return abs(int(_text(supply / "power_now"))) / 1e6
    return abs(int(_text(supply / "voltage_now")) * int(_text(supply / "current_now"))) / 1e12


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()


def drop_from_page_cache(paths: list[Path]) -> bool:
    """Drop files from the system's page cache. True if they are gone. Files that a process has mapped stay, and file
    systems in memory have no other place for them."""
    if not hasattr(os, "posix_fadvise"):
        return False
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())  # pages not written yet stay
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    sizes = [path.stat().st_size for path in paths]
    held = [resident_bytes(path) for path in paths]
    if None in held:
        return False
    return sum(each or 0 for each in held) < 0.05 * sum(sizes)


def resident_bytes(path: Path) -> int | None:
    """Bytes of a file that the page cache holds; None where the system does not tell. Linux only."""
    size = path.stat().st_size
    if sys.platform != "linux" or not size:
        return 0 if not size else None
    import ctypes
    import mmap

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    with path.open("rb") as file:
        start = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    if start in (None, ctypes.c_void_p(-1).value):
        return None
    pages = -(-size // mmap.PAGESIZE)
    state = ctypes.create_string_buffer(pages)
    failed = libc.mincore(start, size, state)
    libc.munmap(start, size)
    return None if failed else sum(byte & 1 for byte in state.raw) * mmap.PAGESIZE
