"""The memory that this process can have at most: the machine's, or less where its control group has a limit."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from edge.runtime.control_groups import groups_of

V1, V2 = "memory.limit_in_bytes", "memory.max"


def memory_limit() -> int | None:
    """Bytes that this process can have at most; None where the system does not tell."""
    found = [*_group_limits()]
    machine = memory_bytes()
    return min(found if machine is None else [*found, machine], default=None)


def memory_bytes() -> int | None:
    """Bytes of memory that the machine has; None where the system does not tell."""
    if sys.platform == "win32":
        return elsewhere("total")
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def elsewhere(field: str) -> int | None:
    """A field of what psutil tells of the machine's memory."""
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        return int(getattr(psutil.virtual_memory(), field))
    return None


def _group_limits() -> Iterator[int]:
    """The limits of this process's control groups."""
    for group in groups_of("memory"):
        for name in (V2, V1):
            with contextlib.suppress(OSError, ValueError):  # "max" is none
                yield int((group / name).read_text(encoding="ascii"))
