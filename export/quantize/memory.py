"""Holding down the memory of long calculations."""

from __future__ import annotations

import contextlib
import ctypes


def release_memory() -> None:
    """Give freed memory back to the system. glibc keeps what lies between longer-lived arrays: with SmolLM2 some
    400 MB by the end of the layers. Other C libraries are left alone."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
