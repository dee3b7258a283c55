"""A GGUF's or a quantized folder's own precision: integers in blocks that graphs have exactly as they are, other types
in 8-bit blocks. Floats stay floats in a GGUF; in a quantized folder, where they are what its quantizer left out
(embedding and head), they get 8 bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from edge.errors import ExportError
from edge.export.facts.tensors import FLOATS, FloatTensor, Format, LazyWeights, QTensor, Weight, matrices, packed_with
from edge.export.quantize.method import Options
from edge.export.quantize.rtn import INT8_BLOCK, round_to_nearest
from edge.export.quantize.smooth import Smoothing

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint

NAME = "keep"
HELP = "the own precision of a GGUF or a quantized folder"
TRAITS = {"bits": 8, "blocks": True, "keeps": True, "max_kl": 0.1}

_GGUF_BLOCK = 32  # the size of a GGUF's blocks


def quantize(checkpoint: Checkpoint, options: Options) -> Mapping[str, Weight]:
    """Weights as a checkpoint stores them; matrices that are packed together take the widest format among them.

    Raises:
        ExportError: the checkpoint holds floats and is no GGUF, or a block size is asked for.
    """
    names = matrices(checkpoint)
    folder = getattr(checkpoint, "root", None) is not None
    if checkpoint.kind != "gguf" and all(checkpoint.stored_type(n) in FLOATS for n in names):
        raise ExportError(
            f"--weights keep is for GGUF files and quantized folders, and {checkpoint.name} is neither; choose int8 or "
            "int4 for it."
        )
    if options.block_size not in ((None,) if folder else (None, _GGUF_BLOCK)):
        raise ExportError(
            f"--block-size {options.block_size} does not apply to --weights keep, which keeps the file's own blocks; "
            "omit it, or choose int8 or int4."
        )
    forms = {name: checkpoint.form(name) for name in names}

    def is_float(name: str) -> bool:
        """True if the matrix stays a float, because it or a matrix that is packed with it is stored as one in a
        GGUF."""
        return not folder and any(checkpoint.stored_type(n) in FLOATS for n in packed_with(name, names))

    def kept(name: str) -> list[Format]:
        """Return the block formats of the matrix and of those packed with it, where they have blocks."""
        return [form for n in packed_with(name, names) if (form := forms[n])]

    smoothing = Smoothing(checkpoint, (n for n in names if not is_float(n) and not kept(n)), options)

    def make(name: str) -> Weight:
        if name in smoothing.vectors:
            return FloatTensor(smoothing.read(name))
        if is_float(name):
            types = {checkpoint.stored_type(n) for n in packed_with(name, names)}
            w = checkpoint.read(name)
            return FloatTensor(w.astype(np.float16) if types == {"F16"} else w)
        if not (those := kept(name)):
            return round_to_nearest(smoothing.read(name), 8, INT8_BLOCK)
        all_kept = len(those) == len(packed_with(name, names))
        bits, block_size = max(form.bits for form in those) if all_kept else 8, min(form.block_size for form in those)
        if forms[name] is None:  # the partners' blocks decide the size
            return round_to_nearest(checkpoint.read(name), bits, block_size)
        return _refitted(_own_blocks(checkpoint, name), bits, block_size)

    return LazyWeights([*names, *smoothing.vectors], make)


def _own_blocks(checkpoint: Checkpoint, name: str) -> QTensor:
    blocks = checkpoint.blocks(name)
    if blocks is None:
        raise ExportError(f"The blocks of {name} in {checkpoint.name} cannot be read; choose int8 or int4 instead.")
    return blocks if getattr(checkpoint, "root", None) is not None else dataclasses.replace(blocks, method="gguf")


def _refitted(blocks: QTensor, bits: int, block_size: int) -> QTensor:
    """Return the same values with `bits` bits or more, in blocks of `block_size` or smaller."""
    if times := blocks.block_size // block_size - 1:
        count = -(-blocks.q.shape[1] // block_size)
        parts = {"scales": blocks.scales, "zero_points": blocks.zero_points}
        smaller: dict[str, Any] = {
            key: None if each is None else np.repeat(each, times + 1, axis=1)[:, :count] for key, each in parts.items()
        }
        blocks = dataclasses.replace(blocks, block_size=block_size, **smaller)
    if blocks.bits == bits:
        return blocks
    # q - 8 == (q + 120) - 128, where the zero point is the middle; else it says itself what it is
    more = np.uint8(2 ** (bits - 1) - 2 ** (blocks.bits - 1)) if blocks.zero_points is None else np.uint8(0)
    return dataclasses.replace(blocks, bits=bits, q=blocks.q + more)
