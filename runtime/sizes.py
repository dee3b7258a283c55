"""Amounts of memory as people write and read them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal

from edge.errors import InputError
from edge.runtime.options import shown

DIGITS = 1000  # of an amount: a Decimal has no more than a million
UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1024, "mi": 1024**2, "gi": 1024**3}
SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([kmg]i?)?b?\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of ``300MB``, ``1.5GB``, ``512MiB`` or a plain number of bytes; InputError for anything else."""
    found = SIZE.fullmatch(text) if len(text) <= DIGITS else None
    size = int(Decimal(found[1]) * UNITS[(found[2] or "").lower()]) if found else 0
    if size < 1:
        raise InputError(f"{shown(text)} is not an amount of memory; write it like 300MB, 1.5GB or 512MiB.")
    return size


def show_size(size: int, whole: Callable[[float], int] = math.ceil) -> str:
    """A number of bytes in a unit that `parse_size` reads, rounded up or as `whole` does it."""
    if size >= 10**9:
        return f"{whole(size / 10**7) / 100:.2f} GB"
    if size >= 10**6:
        return f"{whole(size / 10**6)} MB"
    return f"{size} bytes"
