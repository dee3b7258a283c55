"""Instructions for products of 8-bit integers that this processor lacks."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

MACHINE = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
ARM = MACHINE == "aarch64"
CPUINFO = Path("/proc/cpuinfo")
# By architecture: the instructions that multiply 8-bit integers and add them up in 32 bits, and the flags of
# /proc/cpuinfo any of which says that they are there.
WANTED = {"x86_64": ("VNNI", ("avx512_vnni", "avx_vnni")), "aarch64": ("dot products", ("asimddp",))}


@cache
def lacking() -> str | None:
    """Return a sentence about the instructions that this processor lacks; None where it lacks none, or where the system
    does not tell (outside Linux)."""
    name, flags = WANTED.get(MACHINE, ("", ()))
    try:
        text = CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    listed = next((line for line in text.splitlines() if line.lower().startswith(("flags", "features"))), "")
    if not name or not listed or set(flags) & set(listed.split()):
        return None
    return f"This processor lacks {name}: products in 8 bits take up to twice the time, with the same results."
