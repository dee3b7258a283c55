"""What this processor lacks for products of 8-bit integers, and which older bundles it may compute wrongly for that."""

from __future__ import annotations

import logging
import platform
from functools import cache
from pathlib import Path

from edge.manifest import Manifest

MACHINE = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
ARM = MACHINE == "aarch64"
CPUINFO = Path("/proc/cpuinfo")
# By architecture: the instructions that multiply 8-bit integers and add them up in 32 bits, and the flags of
# /proc/cpuinfo any of which says that they are there.
WANTED = {"x86_64": ("VNNI", ("avx512_vnni", "avx_vnni")), "aarch64": ("dot products", ("asimddp",))}
SATURATING = "x86_64"  # where products of 8 bits are added in 16 bits without VNNI
UNSAFE = "rows"  # the method of int8 weights that are too large for that; `edge.export.quantize.rows` makes others

_log = logging.getLogger(__name__)


@cache
def lacking() -> str | None:
    """What this processor lacks, as a sentence; None where it lacks nothing, or where the system does not tell (outside
    Linux)."""
    name, flags = WANTED.get(MACHINE, ("", ()))
    try:
        text = CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    listed = next((line for line in text.splitlines() if line.lower().startswith(("flags", "features"))), "")
    if not name or not listed or set(flags) & set(listed.split()):
        return None
    return f"This processor lacks {name}: products in 8 bits take up to twice the time, with the same results."


def warn_of_overflow(manifest: Manifest) -> None:
    """Say so where a bundle of an older export may answer wrongly on this processor: its int8 products may overflow."""
    groups = [*manifest.groups, *(manifest.prefill.groups if manifest.prefill is not None else ())]
    if any(group.method == UNSAFE for group in groups) and MACHINE == SATURATING and lacking():
        _log.warning(
            f"{manifest.name} was exported by an older edge, and this processor lacks VNNI: its int8 products may "
            "overflow here, and answers may be wrong. Export the model again."
        )
