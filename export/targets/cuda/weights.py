"""A model's weights in the form of its graphs for CUDA."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from edge.bundle import Tensors
from edge.errors import ExportError
from edge.export import quantize as methods
from edge.export.facts.tensors import FloatTensor, LazyWeights, Weight
from edge.export.graph.weights import Stored, Weights
from edge.export.quantize.encoder_decoder import quantize_encoder_decoder
from edge.export.quantize.method import Options

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint

KINDS = INT4, INT8, FLOAT16 = "int4", "int8", "float16"
BLOCK = 32  # that both of CUDA's ways of multiplying with integers take
VOCABULARY = {"embedding", "head"}  # groups whose floats are float16 even where activations are bfloat16


class CUDAWeights(Weights):
    """CUDA's `Weights`: floats and scales in the type of activations, in a separate file."""

    def __init__(self, source: Checkpoint, matrices: Mapping[str, Weight], file: Tensors, dtype: ir.DataType) -> None:
        super().__init__(source, matrices, file)
        self._dtype = self._now = dtype

    def _store(self, name: str, matrix: Weight, group: str) -> Stored:
        self._now = ir.DataType.FLOAT16 if group in VOCABULARY else self._dtype
        try:
            return super()._store(name, matrix, group)
        finally:
            self._now = self._dtype

    def _tensor(self, name: str, values: NDArray[Any]) -> ir.ExternalTensor:
        if np.issubdtype(values.dtype, np.floating):
            with np.errstate(over="ignore"):
                narrow = values.astype(self._now.numpy())
            if not np.isfinite(narrow).all() and np.isfinite(values).all():
                largest = float(np.abs(values).max())
                raise ExportError(
                    f"{name} holds {largest:.3g}, which float16 cannot; choose --target-activations bfloat16."
                )
            values = narrow
        return super()._tensor(name, values)


def cuda_weights(checkpoint: Checkpoint, kind: str, options: Options) -> Mapping[str, Weight]:
    """Every matrix: floats, or integers in blocks of 32 without zero points. kind: one of `KINDS`."""
    if bool(checkpoint.config.get("is_encoder_decoder")):
        return quantize_encoder_decoder(checkpoint, "fp32", "fp32")
    if kind == FLOAT16:
        return methods.quantize(checkpoint, "fp32", options)
    given = Options(BLOCK, options.calibration, options.progress, options.effort, symmetric=kind == INT4)
    return methods.quantize(checkpoint, kind, given)


def cuda_shapes(checkpoint: Checkpoint) -> Mapping[str, Weight]:
    """Zeros instead of weights: enough to see which graph there will be."""
    shapes = {name: checkpoint.shape(name) for name in checkpoint.names()}
    zeros = {shape: FloatTensor(np.broadcast_to(np.zeros((), np.float16), shape)) for shape in shapes.values()}
    return LazyWeights(list(shapes), lambda name: zeros[shapes[name]])
