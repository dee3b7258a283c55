"""Weights that stay in 32-bit floating point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from edge.export.facts.tensors import FloatTensor, LazyWeights, Weight, matrices
from edge.export.quantize.method import Options

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint

NAME = "fp32"
HELP = "32-bit floating point"
TRAITS = {"bits": 32, "max_kl": 1e-3, "min_top1": 0.99, "encoder": True, "decoder": True, "embedder": True}


def quantize(checkpoint: Checkpoint, options: Options) -> Mapping[str, Weight]:
    return LazyWeights(matrices(checkpoint), lambda name: FloatTensor(checkpoint.read(name)))
