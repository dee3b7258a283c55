"""What is measured on: the processor, installed packages, and what else the machine did meanwhile."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from processes import Worker

NOTICED = 0.03  # of the machine, or of a core: from here on a warning says so


def version(python: str, package: str) -> str:
    """The installed version of a distribution in another interpreter's environment."""
    code = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    done = subprocess.run([python, "-c", code, package], capture_output=True, text=True)
    return done.stdout.strip() or "?"


def cpu_name() -> str:
    """The processor, as the system calls it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def description() -> dict[str, Any]:
    """For the JSON file."""
    return {"cpu": cpu_name(), "cores": os.cpu_count(), "system": platform.platform()}


class Watch:
    """How much of the machine processes took that have no part in the measurement."""

    def __init__(self) -> None:
        self._foreign_s = self._watched_s = 0.0

    @contextmanager
    def over(self, worker: Worker) -> Iterator[None]:
        """Watch while `worker` gives answers."""
        before = worker.cpu_s
        with self._over(lambda: worker.cpu_s - before):
            yield

    @contextmanager
    def over_children(self) -> Iterator[None]:
        """Watch while processes that this one starts do all of their work, and end."""
        before = children_s()
        with self._over(lambda: children_s() - before):
            yield

    @contextmanager
    def _over(self, own_s: Callable[[], float]) -> Iterator[None]:
        busy, start = busy_s(), time.perf_counter()
        yield
        if busy is not None:
            elapsed = time.perf_counter() - start
            self._foreign_s += max(0.0, (busy_s() or 0.0) - busy - own_s())
            self._watched_s += elapsed * (os.cpu_count() or 1)

    def warnings(self, workers: dict[str, Worker]) -> list[str]:
        """What may have spoiled the figures; the workers by the names of their engines."""
        found = []
        if self._watched_s and (share := self._foreign_s / self._watched_s) > NOTICED:
            found.append(f"other processes took {share:.0%} of the machine during the rounds: repeat when idle")
        for name, worker in workers.items():
            if worker.idle_share > NOTICED:
                found.append(f"{name} used up to {worker.idle_share:.0%} of a core while idle")
        return found


def children_s() -> float:
    """CPU seconds of all processes that this one, or one of its children, started and that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def busy_s() -> float | None:
    """CPU seconds that the machine has spent on any process so far; None where the system does not tell."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    user, nice, system, _, _, irq, softirq, steal = map(int, stat.read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
