"""The cores that this process may use: the fewest of those that the system has, those that it is bound to (affinity),
and those that a container's share of processor time amounts to (the CPU quota of a cgroup).

More threads than the quota has cores wait for each other while the system stops them: an eighth of the speed, or less.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/")


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
    quotas = [quota for group in _groups(root) if (quota := _quota(group)) is not None]
    return min(quotas, default=None)


def _groups(root: Path) -> Iterator[Path]:
    """The folders of the groups that this process is in, each with those that it is nested in (man 7 cgroups)."""
    try:
        own = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
        mounts = (root / "proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    paths = {}  # of the group of version 2 and of the one of version 1 that limits processor time
    for line in own:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers or "cpu" in controllers.split(","):
            paths["cgroup" if controllers else "cgroup2"] = path
    for line in mounts:
        place, _, kind = line.partition(" - ")
        fields, (system, *more) = place.split(), kind.split() or [""]
        if system not in paths or len(fields) < 5 or (system == "cgroup" and "cpu" not in more[-1].split(",")):
            continue
        # Of a container that sees its own groups alone the mount begins at a group inside the hierarchy.
        below = _below(PurePosixPath(paths[system]), PurePosixPath(_unescaped(fields[3])))
        mount = root / _unescaped(fields[4]).lstrip("/")
        yield from (mount / part for part in (below, *below.parents))


def _below(path: PurePosixPath, start: PurePosixPath) -> PurePosixPath:
    """A group's path from where its hierarchy is mounted on; that place itself where the group is not in it."""
    if not path.is_relative_to(start) or ".." in path.parts:
        return PurePosixPath()
    return path.relative_to(start)


def _unescaped(field: str) -> str:
    """A path of mountinfo, which writes blanks as octal numbers."""
    for code, character in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        field = field.replace(code, character)
    return field


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
