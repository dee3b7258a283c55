"""A GGUF's own precision: Q4_0, Q8_0 and floats exactly as they are, every other type in 8-bit blocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from edge.errors import ExportError
from edge.export.quantize.base import (
    FLOATS,
    FloatTensor,
    LazyWeights,
    Options,
    QTensor,
    Weight,
    matrices,
    packed_with,
)
from edge.export.quantize.rtn import INT8_BLOCK, round_to_nearest
from edge.export.quantize.smooth import Smoothing

if TYPE_CHECKING:
    from edge.export.checkpoint.base import Checkpoint

NAME = "keep"
HELP = "a GGUF's own precision"
TRAITS = {"bits": 8, "keeps": True, "max_kl": 0.1}

_BLOCKS = {"Q4_0", "Q8_0"}  # that are kept as they are
_GGUF_BLOCK = 32  # the size of these


def quantize(checkpoint: Checkpoint, options: Options) -> Mapping[str, Weight]:
    """Weights as a GGUF stores them; matrices that are packed together take the widest format among them.

    Raises:
        ExportError: the checkpoint is no GGUF, or a block size is asked for.
    """
    names = matrices(checkpoint)
    if checkpoint.kind != "gguf" and all(checkpoint.stored_type(n) in FLOATS for n in names):
        raise ExportError(
            f"--weights keep is for GGUF files, and {checkpoint.name} is not one; choose int8 or int4 for it."
        )
    if options.block_size not in (None, _GGUF_BLOCK):
        raise ExportError(
            f"--block-size {options.block_size} does not apply to --weights keep, which keeps the file's own blocks of "
            "32; omit it, or choose int8 or int4."
        )

    def types_of(name: str) -> set[str]:
        return {checkpoint.stored_type(n) for n in packed_with(name, names)}

    smoothing = Smoothing(checkpoint, (n for n in names if not types_of(n) & (FLOATS | _BLOCKS)), options)

    def make(name: str) -> Weight:
        if name in smoothing.vectors:
            return FloatTensor(smoothing.read(name))
        types = types_of(name)
        if types & FLOATS:
            w = checkpoint.read(name)
            return FloatTensor(w.astype(np.float16) if types == {"F16"} else w)
        if checkpoint.stored_type(name) in _BLOCKS:
            own = _own_blocks(checkpoint, name)
            return own if len(types) == 1 else _widened(own)
        if types & _BLOCKS:  # the partners' blocks decide the size
            return round_to_nearest(checkpoint.read(name), 8, _GGUF_BLOCK)
        return round_to_nearest(smoothing.read(name), 8, INT8_BLOCK)

    return LazyWeights([*names, *smoothing.vectors], make)


def _own_blocks(checkpoint: Checkpoint, name: str) -> QTensor:
    blocks = checkpoint.blocks(name)
    if blocks is None:
        raise ExportError(f"The blocks of {name} in {checkpoint.name} cannot be read; choose int8 or int4 instead.")
    return dataclasses.replace(blocks, method="gguf")


def _widened(blocks: QTensor) -> QTensor:
    """The same values with 8-bit integers."""
    if blocks.bits == 8:
        return blocks
    return dataclasses.replace(blocks, bits=8, q=blocks.q + np.uint8(120))  # q - 8 == (q + 120) - 128
