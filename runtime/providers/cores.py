"""The cores that this process may use: the fewest of those that the system has, those that it is bound to (affinity),
and those that a container's share of processor time amounts to (the CPU quota of a cgroup).

More threads than the quota has cores wait for each other while the system stops them: an eighth of the speed, or less.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

from edge.runtime.control_groups import ROOT, groups_of


def usable_cores() -> int:
    """Cores that this process may use, 1 or more."""
    known = hasattr(os, "sched_getaffinity")  # not on macOS, nor on Windows
    cores = len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1
    quota = cgroup_cores()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def cgroup_cores(root: Path = ROOT) -> float | None:
    """Cores' worth of processor time that this process's control groups allow: the least of its own group and of all
    that it is nested in, of version 1 and 2. None where no group limits it, or the system has none.

    root: of the file system; another one for tests.
    """
    quotas = [quota for group in groups_of("cpu", root) if (quota := _quota(group)) is not None]
    return min(quotas, default=None)


def _quota(group: Path) -> float | None:
    """The quota of one group over its period; None where it has none, or cannot be read."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text(encoding="utf-8").split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text(encoding="utf-8") for name in ("quota", "period"))
        cores = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max" is no number
        return None
    return cores if cores > 0 else None  # -1: none
