"""A bundle's table of successors: what the model usually says after the last three, two or one tokens.

It is counted at export, in answers of the model (`edge.export.successors`), and never changes. A file of fixed size,
`successors.bin`, has it as a hash table that is used as it is: a slot of 8 bytes for each context, found by linear
probing.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping

import numpy as np

from edge.bundle import Bundle
from edge.errors import BundleError
from edge.regular_file import read_regular

FILE = "successors.bin"
HEAD = struct.Struct("<II")  # the logarithm of the number of slots, and that of levels
SLOT = 8  # bytes
MOST_BITS = 24  # 128 MiB: exports write a thousandth of that
FULL = 0.5  # maximum share of used slots: a miss then looks at two or three
MULTIPLIER = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio (Knuth, TAOCP 3, 6.4)
WORD = 2**64 - 1
NONE = -1  # instead of a missing token

# How likely a successor is, in halves of a log-odd from -3 to 3.
LEVELS = 12
LEAST = -3.0
STEP = 0.5

Context = tuple[int, ...]


def level_of(chance: float) -> int:
    """The level of a successor that follows with this chance, 0 < chance < 1."""
    return min(LEVELS - 1, max(0, math.floor((math.log(chance / (1 - chance)) - LEAST) / STEP)))


def write_table(successors: Mapping[Context, tuple[int, int]]) -> bytes:
    """The bytes of a bundle's file.

    A slot is a number of 64 bits: the context's check in the upper 32, the level and 1 in 8, the token in 24; 0 where
    it is free. All numbers are little-endian.

    successors: of a context of one to three tokens, the last one last, the token that follows it and its level.
    """
    bits = max(1, math.ceil(math.log2(len(successors) / FULL))) if successors else 1
    slots, mask = np.zeros(2**bits, np.uint64), 2**bits - 1
    for context, (token, level) in successors.items():
        mixed = _mixed(*(NONE,) * (3 - len(context)), *context)
        slot = mixed >> 64 - bits
        while slots[slot]:
            slot = slot + 1 & mask
        slots[slot] = (mixed & 0xFFFFFFFF) << 32 | level + 1 << 24 | token
    return HEAD.pack(bits, LEVELS) + slots.astype("<u8").tobytes()


def _mixed(third: int, second: int, last: int) -> int:
    """64 bits of a context of three tokens; its upper bits are the slot to begin with, the lower 32 its check."""
    return (((third + 1) * MULTIPLIER + second + 1) * MULTIPLIER + last + 1) * MULTIPLIER & WORD


def table_nbytes(bundle: Bundle) -> int:
    """Bytes of the bundle's file, all of which may become resident; 0 where it has none."""
    return bundle.sizes.get(FILE, 0)


class Successors:
    """The table of a bundle that has the file, in memory; BundleError where the file cannot be read, or is not
    what `write_table` writes."""

    def __init__(self, bundle: Bundle) -> None:
        path = bundle.file(FILE)
        try:
            kept = memoryview(read_regular(path, HEAD.size + (SLOT << MOST_BITS)))
        except OSError as e:
            raise BundleError(f"{path} cannot be read: {e.strerror}.") from None
        bits, levels = HEAD.unpack_from(kept) if len(kept) >= HEAD.size else (0, 0)
        if not 1 <= bits <= MOST_BITS or levels != LEVELS or len(kept) != HEAD.size + (SLOT << bits):
            raise BundleError(f"{path} is not a table of successors; export or copy the bundle again.")
        slots = np.frombuffer(kept, "<u8", offset=HEAD.size)
        vocab, found = bundle.manifest.dims.vocab_size, slots[slots != 0]
        tokens, above = found & 0xFFFFFF, (found >> np.uint64(24)) & np.uint64(0xFF)
        valid = (tokens < vocab) & (above >= 1) & (above <= LEVELS)
        if found.size == slots.size or not valid.all():  # without a free slot a search would not end
            raise BundleError(
                f"{path} names tokens that the vocabulary of {vocab} does not have, or is damaged; export the bundle "
                "again."
            )
        self._slots, self._mask, self._shift = kept[HEAD.size :].cast("Q"), 2**bits - 1, 64 - bits

    def after(self, third: int, second: int, last: int) -> tuple[int, int] | None:
        """The token that follows the longest context known, and its level; None where none is known."""
        slots, mask, shift = self._slots, self._mask, self._shift
        for mixed in (_mixed(third, second, last), _mixed(NONE, second, last), _mixed(NONE, NONE, last)):
            check, slot = mixed & 0xFFFFFFFF, mixed >> shift
            while held := slots[slot]:
                if held >> 32 == check:
                    return held & 0xFFFFFF, (held >> 24 & 0xFF) - 1
                slot = slot + 1 & mask
        return None
