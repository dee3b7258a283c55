"""Memory of a process, as every system reports it."""

from __future__ import annotations

from typing import NamedTuple


class Held(NamedTuple):
    """Bytes of a process, now and at its peak so far: private, and resident (RSS)."""

    private: int
    peak_private: int
    rss: int
    peak_rss: int
