"""GPTQ's form, as AutoGPTQ and GPTQModel write it: integers packed along the inputs, zero points along the outputs.

Source: the ``pack`` functions of both, and ``checkpoint_format``: "gptq" stores each zero point less one, "gptq_v2" as
it is. With act-order (``desc_act``) the columns of a group do not follow each other, and g_idx says which group each
is in.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from edge.export.checkpoint.quantized.packing import WORD, Integers, Parts, Settings, Unpacked, misfit, part_of, unpack
from edge.export.checkpoint.stored import Stored

NAME = "gptq"
HELP = "GPTQ: 2, 3, 4 or 8 bits in groups"
TRAITS = {"called": "GPTQ", "parts": ("qweight", "qzeros", "scales", "g_idx")}

BITS = (2, 3, 4, 8)
LESS_ONE = {"gptq": True, "gptq_v2": False}  # whether zero points are stored so
FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def check(settings: Settings) -> None:
    if (bits := settings.number("bits", 4)) not in BITS:
        raise settings.refused("bits", bits, f"known are {', '.join(map(str, BITS))}")
    form = settings.text("checkpoint_format", "gptq")
    if settings.flag("is_marlin_format"):
        form = "marlin"
    if form not in LESS_ONE:
        raise settings.refused("checkpoint_format", form, f"known are {', '.join(LESS_ONE)}")


def matrix(module: str, parts: Parts, settings: Settings) -> Integers:
    qweight = part_of(module, parts, "qweight", (torch.int32,), 2)
    scales = part_of(module, parts, "scales", FLOATS, 2)
    qzeros = part_of(module, parts, "qzeros", (torch.int32,), 2)
    (words, rows), (groups, _) = qweight.shape, scales.shape
    index = _index(module, parts, groups)
    bits = settings.number("bits", 4)
    if index is not None and words * WORD // len(index) in BITS:  # some modules may have other bits than most
        bits = words * WORD // len(index)
    columns = words * WORD // bits
    if not (words and rows) or words * WORD % bits or (index is not None and len(index) != columns):
        raise misfit(qweight, f"of shape {list(qweight.shape)}")
    if scales.shape != (groups, rows) or not groups:
        raise misfit(scales, f"of shape {list(scales.shape)}")
    if qzeros.shape != (groups, -(-rows * bits // WORD)):
        raise misfit(qzeros, f"of shape {list(qzeros.shape)}")
    size = settings.number("group_size", 128)
    size = size if size > 0 else columns
    if -(-columns // size) != groups:
        size = -(-columns // groups)
        if index is None and -(-columns // size) != groups:
            raise misfit(scales, f"of shape {list(scales.shape)}")
    less_one = LESS_ONE[settings.text("checkpoint_format", "gptq")]
    return _GPTQ(qweight, scales, qzeros, (rows, columns), bits, size, index, less_one)


def _index(module: str, parts: Parts, groups: int) -> NDArray[np.int64] | None:
    """The group of each column; None where there is no g_idx, or an empty one."""
    if "g_idx" not in parts:
        return None
    stored = part_of(module, parts, "g_idx", (torch.int32, torch.int64), 1)
    return group_index(stored, groups)


def group_index(stored: Stored, groups: int) -> NDArray[np.int64] | None:
    """A stored g_idx; None of an empty one.

    Raises:
        CheckpointError: it names a group that is not there.
    """
    index = stored.raw().numpy().astype(np.int64)
    if not len(index):
        return None
    if index.min() < 0 or index.max() >= groups:
        wrong = index.min() if index.min() < 0 else index.max()
        raise misfit(stored, f"a list with the group {wrong} of {groups}")
    return index


class _GPTQ(Integers):
    def __init__(
        self,
        qweight: Stored,
        scales: Stored,
        qzeros: Stored,
        shape: tuple[int, int],
        bits: int,
        group: int,
        index: NDArray[np.int64] | None,
        less_one: bool,
    ) -> None:
        super().__init__(qweight, f"GPTQ int{bits}", shape, bits, group, index)
        self._scales, self._qzeros, self._less_one = scales, qzeros, less_one

    def unpacked(self, rows: slice) -> Unpacked:
        q = unpack(self.where.raw()[:, rows].numpy().T, self.bits)
        zeros = unpack(self._qzeros.raw().numpy(), self.bits)[:, : self.shape[0]]
        if self._less_one:
            zeros = (zeros + np.uint8(1)) & np.uint8(2**self.bits - 1)
        scales = self._scales.floats()[:, rows].T
        return Unpacked(q, scales, zeros[:, rows].T)
