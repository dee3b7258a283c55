"""Test if the processor that exports computes products in bfloat16, and faster than in float32."""

from __future__ import annotations

import logging
import math
import time
from functools import cache
from pathlib import Path

import torch

from edge.children import Child, ChildEnded

_log = logging.getLogger(__name__)


@cache
def fast_dtype() -> torch.dtype:
    """bfloat16 where this processor multiplies it faster than float32 (training bears its rounding), else float32."""
    if not runs():
        _log.warning("PyTorch's products in bfloat16 crash on this processor: float32 takes their place, more slowly.")
        return torch.float32
    return min((torch.bfloat16, torch.float32), key=_matmul_time)


@cache
def runs() -> bool:
    """True if a product in bfloat16 does not crash.

    Some virtual machines offer AMX and hide the sizes of its tiles (CPUID leaf 0x1D is empty). PyTorch 2.13 then
    configures tiles without rows, and the first instruction on them kills the process. So another process tries it.
    """
    try:
        offered = "amx_tile" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:  # not Linux
        offered = False
    if not offered:
        return True
    with Child(_multiply, said=Child.QUIET) as other:
        try:
            other.result()
        except (ChildEnded, RuntimeError):
            return False
    return True


def _multiply() -> None:
    a = torch.ones(512, 512, dtype=torch.bfloat16)
    a @ a


def _matmul_time(dtype: torch.dtype) -> float:
    a = torch.ones(512, 512, dtype=dtype)
    best = math.inf
    for _ in range(4):
        start = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - start)
    return best
