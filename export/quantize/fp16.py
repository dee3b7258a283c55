"""Weights in 16-bit floating point, which products compute with in 32 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from edge.errors import ExportError
from edge.export.facts.tensors import FloatTensor, LazyWeights, Weight, matrices
from edge.export.quantize.method import Options

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint

NAME = "fp16"
HELP = "16-bit floating point"
TRAITS = {"bits": 16, "max_kl": 1e-2}


def quantize(checkpoint: Checkpoint, options: Options) -> Mapping[str, Weight]:
    def make(name: str) -> FloatTensor:
        w = checkpoint.read(name)
        if np.abs(w).max(initial=0) > np.finfo(np.float16).max:
            raise ExportError(
                f"The weight {name} holds {np.abs(w).max():.3g}, which float16 cannot; use --weights fp32 or int8."
            )
        return FloatTensor(w.astype(np.float16))

    return LazyWeights(matrices(checkpoint), make)
