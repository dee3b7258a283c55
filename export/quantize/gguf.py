"""The weights of a GGUF file as they are, blocks and floats in 16 bits, which our kernels compute with: nothing is
rounded. Types that these do not know become 8-bit blocks, and other floats stay floats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from edge.errors import ExportError
from edge.export.facts.experts import EXPERT_PROJECTIONS, OF_EXPERT, expert_name, stack_name
from edge.export.facts.tensors import FLOATS, FloatTensor, LazyWeights, Weight, matrices
from edge.export.quantize.method import Options
from edge.export.quantize.rtn import INT8_BLOCK, round_to_nearest

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint

NAME = "gguf"
HELP = "a GGUF file's own weights, for hosts with edge-lm-kernels"
TRAITS = {"bits": 8, "keeps": True, "gguf_blocks": True, "max_kl": 0.1}


def quantize(checkpoint: Checkpoint, options: Options) -> Mapping[str, Weight]:
    """Matrices as a file has them.

    Raises:
        ExportError: the checkpoint is no GGUF file, or has no type that our kernels know.
    """
    if not checkpoint.files:
        raise ExportError(
            f"--weights gguf is for GGUF files, and {checkpoint.name} is none; choose int8 or int4 for it."
        )
    names = _names(checkpoint)
    if all(checkpoint.gguf_tensor(name, in_place=False) is None for name in names):
        kinds = ", ".join(sorted({checkpoint.stored_type(name) for name in names}))
        raise ExportError(
            f"{checkpoint.name} has no weights that --weights gguf could keep ({kinds}); choose keep, int8 or int4."
        )

    def make(name: str) -> Weight:
        if (found := checkpoint.gguf_tensor(name, in_place=options.in_place)) is not None:
            return found
        kind, values = checkpoint.stored_type(name), checkpoint.read(name)
        if kind in FLOATS and all(checkpoint.stored_type(other) in FLOATS for other in _of_one_operator(name)):
            return FloatTensor(values.astype(np.float16) if kind == "F16" else values)
        if kind == "MXFP4" and (exact := checkpoint.blocks(name)) is not None:
            return exact
        return round_to_nearest(values, 8, INT8_BLOCK)

    return LazyWeights(names, make)


def _of_one_operator(name: str) -> list[str]:
    """The matrices that an operator takes together, in integers or in floats."""
    if not (expert := OF_EXPERT.fullmatch(name)):
        return [name]
    return [expert_name(expert[1], int(expert[2]), each) for each in EXPERT_PROJECTIONS]


def _names(checkpoint: Checkpoint) -> list[str]:
    """The matrices of a model, in which those of all experts of a block are one where the file's weights can stay."""
    names = matrices(checkpoint)
    blocks = dict.fromkeys(found[1] for found in map(OF_EXPERT.fullmatch, names) if found)
    stacks = {block: [stack_name(block, each) for each in EXPERT_PROJECTIONS] for block in blocks}
    kept = {
        block
        for block, own in stacks.items()
        if all(checkpoint.gguf_tensor(name, in_place=False) is not None for name in own)
    }
    others = [name for name in names if not ((found := OF_EXPERT.fullmatch(name)) and found[1] in kept)]
    return [*others, *(name for block in kept for name in stacks[block])]
