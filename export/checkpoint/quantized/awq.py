"""AWQ's form, as AutoAWQ writes it for its kernels of the version "gemm": integers packed along the outputs, in an
order of their own.

Source: ``WQLinear_GEMM`` there. Zero points are stored as they are.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from edge.export.checkpoint.quantized.packing import WORD, Integers, Parts, Settings, Unpacked, misfit, part_of, unpack
from edge.export.checkpoint.stored import Stored

NAME = "awq"
HELP = "AWQ: 4 bits in groups"
TRAITS = {"called": "AWQ", "parts": ("qweight", "qzeros", "scales")}

BITS = 4
EACH = WORD // BITS  # integers of a word
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of its outputs each is, from the low bits up
PLACES = np.argsort(ORDER)  # of each output in its word
FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def check(settings: Settings) -> None:
    if (bits := settings.number("bits", settings.number("w_bit", BITS))) != BITS:
        raise settings.refused("bits", bits, f"{BITS} are known")
    for key in ("version", "format"):
        if (version := settings.text(key, "gemm")).lower() != "gemm":
            raise settings.refused(key, version, "gemm is known")


def matrix(module: str, parts: Parts, settings: Settings) -> Integers:
    qweight = part_of(module, parts, "qweight", (torch.int32,), 2)
    scales = part_of(module, parts, "scales", FLOATS, 2)
    qzeros = part_of(module, parts, "qzeros", (torch.int32,), 2)
    columns, words = qweight.shape
    groups, rows = scales.shape
    size = settings.number("group_size", settings.number("q_group_size", 128))
    size = size if size > 0 else columns
    if not (columns and words):
        raise misfit(qweight, f"of shape {list(qweight.shape)}")
    if rows != words * EACH or groups != -(-columns // size):
        raise misfit(scales, f"of shape {list(scales.shape)}")
    if qzeros.shape != (groups, words):
        raise misfit(qzeros, f"of shape {list(qzeros.shape)}")
    return _AWQ(qweight, scales, qzeros, (rows, columns), size)


class _AWQ(Integers):
    def __init__(self, qweight: Stored, scales: Stored, qzeros: Stored, shape: tuple[int, int], group: int) -> None:
        super().__init__(qweight, "AWQ int4", shape, BITS, group)
        self._scales, self._qzeros = scales, qzeros

    def unpacked(self, rows: slice) -> Unpacked:
        start, stop, _ = rows.indices(self.shape[0])
        q, zeros = (_outputs(each, start, stop) for each in (self.where, self._qzeros))
        return Unpacked(q, self._scales.floats()[:, rows].T, zeros)


def _outputs(stored: Stored, start: int, stop: int) -> NDArray[np.uint8]:
    """Integers of some outputs, one row for each."""
    first = start // EACH
    words = stored.raw()[:, first : -(-stop // EACH)].numpy()
    each = unpack(words, BITS).reshape(*words.shape, EACH)[:, :, PLACES]
    return np.ascontiguousarray(each.reshape(len(words), -1)[:, start - first * EACH : stop - first * EACH].T)
