"""The host's pool of threads, which all sessions of a process share, whatever runs them.

With pools of their own, 30 sessions in turn take 90 ms a token instead of 4 ms, because idle pools spin.
"""

from __future__ import annotations

import logging
import os

import onnxruntime as ort

from edge.errors import InputError
from edge.runtime.providers.cores import usable_cores

MAXIMUM = 16  # threads that may be asked for, or twice the cores: threads without work spin, thousands stop the machine

_pool: int | None = None  # its threads, once it is there
_told = False  # whether it was said that it keeps its size


def share_thread_pool(threads: int | None) -> int:
    """The threads of the pool. The first call sizes it: `threads`, default `default_threads`. A later call with another
    size logs a warning, once; InputError for a number of threads that a pool cannot have."""
    global _pool, _told
    check_threads(threads)
    if _pool is None:
        _pool = threads or default_threads()
        ort.set_global_thread_pool_sizes(_pool, 1)
    elif threads not in (None, _pool) and not _told:
        _told = True
        logging.getLogger(__name__).warning(
            "All models of a process share one pool of threads, which the first one set to %d; the %d asked for now "
            "are not used.",
            _pool,
            threads,
        )
    return _pool


def pool_threads(threads: int | None) -> int:
    """The threads that the pool has, or will have where this number is asked for first."""
    return _pool or threads or default_threads()


def check_threads(threads: int | None) -> None:
    """Raise InputError where a pool cannot have this number of threads."""
    maximum = max(MAXIMUM, 2 * (os.cpu_count() or 1))
    if threads is not None and threads < 1:
        raise InputError(f"The number of threads must be at least 1, not {threads}.")
    if threads is not None and threads > maximum:
        raise InputError(f"The number of threads must be at most {maximum} on this machine, not {threads}.")


def default_threads() -> int:
    """The threads of the pool where nobody says how many: the usable cores, at most 8."""
    return min(usable_cores(), 8)
