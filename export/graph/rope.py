"""Rotary position tables, as transformers computes them for a configuration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnxscript import nn

from edge.export.graph.weights import Weights
from edge.export.lower.base import Lowering, Value


class RotaryTable(nn.Module):
    """Cosines and sines of all positions: two tables [max_context, rotated dimensions / 2]."""

    def __init__(self, weights: Weights, name: str, cos: NDArray[np.float32], sin: NDArray[np.float32]):
        super().__init__()
        self.cos = weights.table(f"{name}.cos", cos)
        self.sin = weights.table(f"{name}.sin", sin)

    def forward(self, op: Lowering) -> tuple[Value, Value]:
        return self.cos, self.sin


def rotary_tables(weights: Weights, embedding: torch.nn.Module, max_context: int) -> dict[str, RotaryTable]:
    """The table of transformers' rotary module `embedding` for the positions 0 to max_context - 1, as "rope"; or one
    for each type of layers, by its name, where they have their own.

    Every scaling (linear, dynamic, llama3, yarn, longrope) is transformers' own. Those that depend on the
    sequence's length are taken at `max_context`: one table serves all steps, so that cached keys stay valid.
    """
    kinds: Iterable[str] | None = getattr(embedding, "layer_types", None)
    if kinds is None:
        return {"rope": RotaryTable(weights, "rope", *cos_sin(embedding, max_context))}
    return {kind: RotaryTable(weights, f"{kind}.rope", *cos_sin(embedding, max_context, kind)) for kind in kinds}


def cos_sin(
    embedding: torch.nn.Module, max_context: int, layer_type: str | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines [max_context, rotated dimensions / 2] float32."""
    positions = torch.arange(max_context).unsqueeze(0)
    args: list[Any] = [torch.zeros(1, dtype=torch.float32), positions]
    if layer_type is not None:
        args.append(layer_type)
    cos, sin = embedding(*args)
    half = cos.shape[-1] // 2  # transformers repeats each table for the second half of a head
    return cos[0, :, :half].contiguous().numpy(), sin[0, :, :half].contiguous().numpy()
