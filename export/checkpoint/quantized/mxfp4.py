"""MXFP4: 4-bit floats in blocks of 32 that share a power of two, of all experts of a layer: gpt-oss's.

Source: OCP Microscaling Formats (MX) 1.0, section 5.3.3, and ``transformers.integrations.mxfp4``. Of two values in a
byte the first is in the low half.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from edge.export.checkpoint.quantized.packing import Integers, Parts, Settings, Unpacked, misfit, part_of, unpack
from edge.export.checkpoint.stored import Stored
from edge.export.facts.experts import rows_of
from edge.export.facts.mxfp4 import BLOCK, FORM, exact

NAME = "mxfp4"
HELP = "MXFP4 experts"
TRAITS = {"called": "MXFP4", "parts": ("blocks", "scales"), "joint": "_"}
NO_NUMBER = 255  # an exponent


def check(settings: Settings) -> None:
    """Accept all settings: they name modules that stay floats, which the tensors show."""


def matrix(module: str, parts: Parts, settings: Settings) -> Stack:
    blocks = part_of(module, parts, "blocks", (torch.uint8,), 4)
    scales = part_of(module, parts, "scales", (torch.uint8,), 3)
    if blocks.shape[-1] != BLOCK // 2:
        raise misfit(blocks, f"of shape {list(blocks.shape)}")
    if scales.shape != blocks.shape[:-1]:
        raise misfit(scales, f"of shape {list(scales.shape)}")
    return Stack(blocks, scales)


class Stack:
    """The matrices of all experts: [experts, rows, columns]. Each is read by itself."""

    type, form = "MXFP4", None

    def __init__(self, blocks: Stored, scales: Stored) -> None:
        self.where, self._scales = blocks, scales
        experts, rows, count, _ = blocks.shape
        self.shape = experts, rows, count * BLOCK

    def member(self, expert: int, place: int, count: int, *, turned: bool) -> _Rows:
        """One of the `count` matrices of an expert; see `Experts.turned`."""
        return _Rows(self.where, self._scales, expert, rows_of(self.shape[1], place, count, turned=turned))

    def read(self, rows: slice | None = None) -> NDArray[np.float32]:
        raise misfit(self.where, "of experts that the model does not have")

    def blocks(self) -> None:
        return None


class _Rows(Integers):
    """Some rows of one expert's."""

    form = FORM

    def __init__(self, blocks: Stored, scales: Stored, expert: int, rows: slice) -> None:
        self._blocks, self._exponents = blocks.tensor[expert, rows], scales.tensor[expert, rows]
        self._scales = scales
        count, groups, _ = self._blocks.shape
        super().__init__(blocks, "MXFP4", (count, groups * BLOCK), FORM.bits, BLOCK)

    def unpacked(self, rows: slice) -> Unpacked:
        for stored in (self.where, self._scales):
            stored.mapped.check()
        packed = np.ascontiguousarray(self._blocks[rows].numpy())
        exponents = self._exponents[rows].numpy()
        if (exponents == NO_NUMBER).any():
            raise misfit(self._scales, "in part no numbers (255)")
        made = exact(unpack(packed.reshape(len(packed), -1), 4), exponents)
        if not np.isfinite(made.scales).all():
            raise misfit(self._scales, "in part too large for 32-bit floats")
        return Unpacked(made.q, made.scales, None)
