"""Weights that our kernels compute in the blocks of GGUF files: a file's own, blocks and floats in 16 bits, of which
nothing is rounded; and the experts of a folder in MXFP4, in the same blocks.

Types that these kernels do not know become 8-bit blocks. Other floats stay floats in a file. In a folder, where they
are what its quantizer left out (attention, embedding and head), they become 8-bit blocks, too, of which a token reads
half as much. Their inputs are not smoothed as those of `keep` are: that runs the whole model in numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from edge.errors import ExportError
from edge.export.facts.experts import EXPERT_PROJECTIONS, OF_EXPERT, expert_name, stack_name
from edge.export.facts.tensors import FLOATS, FloatTensor, Format, LazyWeights, Weight, matrices
from edge.export.quantize.method import Options
from edge.export.quantize.rtn import INT8_BLOCK, round_rows

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint

NAME = "gguf"
HELP = "a GGUF file's own weights, or a folder's MXFP4, for hosts with edge-lm-kernels"
TRAITS = {"bits": 8, "keeps": True, "gguf_blocks": True, "max_kl": 0.1}


def quantize(checkpoint: Checkpoint, options: Options) -> Mapping[str, Weight]:
    """Matrices as a file, or a folder in MXFP4, has them.

    Raises:
        ExportError: the checkpoint is neither, or has no type that our kernels know.
    """
    file, kept = bool(checkpoint.files), kept_experts(checkpoint)
    if not file and not kept:
        raise ExportError(
            f"--weights gguf is for GGUF files and for folders with experts in MXFP4, and {checkpoint.name} is "
            "neither; choose int8 or int4 for it."
        )
    names = _names(checkpoint, kept)
    if all(checkpoint.gguf_type(name) is None for name in names):
        kinds = ", ".join(sorted({checkpoint.stored_type(name) for name in names}))
        raise ExportError(
            f"{checkpoint.name} has no weights that --weights gguf could keep ({kinds}); choose keep, int8 or int4."
        )

    def make(name: str) -> Weight:
        if (found := checkpoint.gguf_tensor(name, in_place=options.in_place)) is not None:
            return found
        kind = checkpoint.stored_type(name)
        if file and kind in FLOATS and all(checkpoint.stored_type(other) in FLOATS for other in _of_one_operator(name)):
            values = checkpoint.read(name)
            return FloatTensor(values.astype(np.float16) if kind == "F16" else values)
        if kind == "MXFP4" and (exact := checkpoint.blocks(name)) is not None:
            return exact
        return round_rows(checkpoint, name, Format(8, INT8_BLOCK, symmetric=True))

    return LazyWeights(names, make)


def _of_one_operator(name: str) -> list[str]:
    """The matrices that an operator takes together, in integers or in floats."""
    if not (expert := OF_EXPERT.fullmatch(name)):
        return [name]
    return [expert_name(expert[1], int(expert[2]), each) for each in EXPERT_PROJECTIONS]


def kept_experts(checkpoint: Checkpoint) -> list[str]:
    """The blocks of experts, as `model.layers.0.mlp`, whose matrices stay as they are: all of a projection as one."""
    found = [each[1] for each in map(OF_EXPERT.fullmatch, matrices(checkpoint)) if each]
    return [
        block
        for block in dict.fromkeys(found)
        if all(checkpoint.gguf_type(stack_name(block, each)) is not None for each in EXPERT_PROJECTIONS)
    ]


def _names(checkpoint: Checkpoint, kept: list[str]) -> list[str]:
    """The matrices of a model, in which those of all experts of a block are one where they are `kept`."""
    others = [name for name in matrices(checkpoint) if not ((found := OF_EXPERT.fullmatch(name)) and found[1] in kept)]
    return [*others, *(stack_name(block, each) for block in kept for each in EXPERT_PROJECTIONS)]
