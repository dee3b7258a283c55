"""Rotary position tables, as transformers computes them for a configuration."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from onnxscript import OpBuilder, nn

from edge.errors import ExportError
from edge.export.graph.weights import Weights


class RotaryTable(nn.Module):
    """Cosines and sines of all positions: two tables [max_context, rotated dimensions / 2]."""

    def __init__(self, weights: Weights, name: str, cos: NDArray[np.float32], sin: NDArray[np.float32]):
        super().__init__()
        self.cos = weights.table(f"{name}.cos", cos)
        self.sin = weights.table(f"{name}.sin", sin)

    def forward(self, op: OpBuilder) -> tuple[ir.Value, ir.Value]:
        return self.cos, self.sin


def rotary_table(
    weights: Weights, embedding: torch.nn.Module, max_context: int, *, layer_type: str | None = None
) -> RotaryTable:
    """The table of transformers' rotary module `embedding` for the positions 0 to max_context - 1.

    Every scaling (linear, dynamic, llama3, yarn, longrope) is transformers' own. Those that depend on the
    sequence's length are taken at `max_context`: one table serves all steps, so that cached keys stay valid.
    `layer_type` chooses among the tables of models that have several.
    """
    cos, sin = cos_sin(embedding, max_context, layer_type)
    name = "rope" if layer_type is None else f"{layer_type}.rope"
    return RotaryTable(weights, name, cos, sin)


def cos_sin(
    embedding: torch.nn.Module, max_context: int, layer_type: str | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines [max_context, rotated dimensions / 2] float32.

    Raises:
        ExportError: onnxruntime cannot rotate so many dimensions.
    """
    positions = torch.arange(max_context).unsqueeze(0)
    args: list[Any] = [torch.zeros(1, dtype=torch.float32), positions]
    if layer_type is not None:
        args.append(layer_type)
    cos, sin = embedding(*args)
    half = cos.shape[-1] // 2  # transformers repeats each table for the second half of a head
    if half % 8:
        raise ExportError(
            f"The model rotates {2 * half} dimensions of each head, and onnxruntime's attention only multiples of 16; "
            "this model cannot be exported."
        )
    return cos[0, :, :half].contiguous().numpy(), sin[0, :, :half].contiguous().numpy()
