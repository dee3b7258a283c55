"""How much memory this process has used."""

from __future__ import annotations

import sys
from pathlib import Path

MIB = 2**20


def peak_rss_mb() -> float | None:
    """The largest resident set of this process so far, in MiB; None where the system does not tell.

    On Linux from `/proc`: what `getrusage` reports there begins with the memory of the process that started this one.
    """
    if sys.platform == "linux":
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    if sys.platform == "win32":
        return None
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / (MIB if sys.platform == "darwin" else 1024)
