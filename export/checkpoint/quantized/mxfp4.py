"""MXFP4: 4-bit floats in blocks of 32 that share a power of two, of all experts of a layer: gpt-oss's.

Source: OCP Microscaling Formats (MX) 1.0, section 5.3.3, and ``transformers.integrations.mxfp4``. Of two values in a
byte the first is in the low half. GGUF files have the same blocks with their values in another order.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from edge.export.checkpoint.quantized.packing import Integers, Parts, Settings, Unpacked, misfit, part_of, unpack
from edge.export.checkpoint.stored import Stored
from edge.export.facts.experts import rows_of
from edge.export.facts.mxfp4 import BLOCK, FORM, SAFE, exact, gguf_blocks
from edge.export.facts.tensors import GGUF_TYPES, GgufTensor

NAME = "mxfp4"
HELP = "MXFP4 experts"
TRAITS = {"called": "MXFP4", "parts": ("blocks", "scales"), "joint": "_"}
NO_NUMBER = 255  # an exponent
GGUF_TYPE = 39  # as GGUF files number MXFP4


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

    def member(self, expert: int, place: int, count: int, *, turned: bool) -> Member:
        """One of the `count` matrices of an expert; see `Experts.turned`."""
        return Member(self.where, self._scales, expert, rows_of(self.shape[1], place, count, turned=turned))

    def read(self, rows: slice | None = None) -> NDArray[np.float32]:
        raise misfit(self.where, "of experts that the model does not have")

    def blocks(self) -> None:
        return None


class Member(Integers):
    """Some rows of one expert's."""

    form = FORM

    def __init__(self, blocks: Stored, scales: Stored, expert: int, rows: slice) -> None:
        self._blocks, self._exponents = blocks.tensor[expert, rows], scales.tensor[expert, rows]
        self._scales, self._rows = scales, rows
        count, groups, _ = self._blocks.shape
        super().__init__(blocks, "MXFP4", (count, groups * BLOCK), FORM.bits, BLOCK)

    def unpacked(self, rows: slice) -> Unpacked:
        packed, exponents = self._read(rows)
        made = exact(unpack(packed.reshape(len(packed), -1), 4), exponents)
        if not np.isfinite(made.scales).all():
            raise misfit(self._scales, "in part too large for 32-bit floats")
        return Unpacked(made.q, made.scales, None)

    def of_all_experts(self) -> GgufTensor:
        """The same rows of all experts, one after the other, as a GGUF file has them: [experts * rows, bytes of a row].
        One expert at a time is read.

        Raises:
            CheckpointError: a block has an exponent that is no number, or above SAFE, which our kernels do not take.
        """
        rows, columns = self.shape
        count = self.where.shape[0]
        raw = np.empty((count, rows, columns // BLOCK, 1 + BLOCK // 2), np.uint8)
        for i in range(count):
            expert = Member(self.where, self._scales, i, self._rows)
            packed, exponents = expert._read(slice(None))
            if exponents.max(initial=0) > SAFE:
                raise misfit(self._scales, "in part too large for blocks of GGUF files")
            gguf_blocks(packed, exponents, raw[i])
        return GgufTensor(raw.reshape(count * rows, -1), columns, GGUF_TYPE, self.type, GGUF_TYPES[self.type])

    def _read(self, rows: slice) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return the packed values [rows, blocks, 16] and the exponents [rows, blocks]; CheckpointError if one of these
        is no number."""
        for stored in (self.where, self._scales):
            stored.mapped.check()
        exponents = self._exponents[rows].numpy()
        if (exponents == NO_NUMBER).any():
            raise misfit(self._scales, "in part no numbers (255)")
        return np.ascontiguousarray(self._blocks[rows].numpy()), exponents
