"""Weights in 4 bits as Qualcomm's NPUs take them, by low power block quantization (LPBQ).

The inputs of an output are cut into blocks. A block's scale is its output's, times a step of 4 bits. Integers come from
GPTQ, over what the calibration text gives each matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from edge.export.facts.tensors import Format
from edge.export.quantize.solve import solve

BITS, BLOCK = 4, 32
STEPS = 15  # the largest step of a block
SMALLEST = 1e-6  # of the weights of an output
ROWS = 1024  # whose steps are searched at a time
NIBBLE = ir.DataType.INT4.numpy()

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Blocks:
    """A weight [N, K] as ``scale * step * q``. q: [K, N] int4. steps: [K / BLOCK, N] uint8, 1 to STEPS. scale: [N]."""

    q: NDArray[Any]
    steps: NDArray[np.uint8]
    scale: Floats


def in_blocks(weight: Floats, moment: Floats) -> Blocks:
    """A weight [N, K], K a multiple of `BLOCK`, in 4 bits. moment: of its inputs, [K, K]."""
    made = solve(weight, moment, Format(BITS, BLOCK, symmetric=True), find=_search)
    scale = _scale(weight)
    steps = np.rint(made.scales / scale[:, None]).astype(np.uint8)
    q = (made.q.astype(np.int8) - 2 ** (BITS - 1)).astype(NIBBLE)
    return Blocks(np.ascontiguousarray(q.T), np.ascontiguousarray(steps.T), scale)


def _search(weight: Floats, weights: Floats, form: Format) -> tuple[Floats, Floats]:
    """Search as `edge.export.quantize.solve.search` does: of all steps, the one with the least squared error."""
    scales = np.concatenate([_search_rows(weight[i : i + ROWS], weights) for i in range(0, len(weight), ROWS)])
    return scales, np.full_like(scales, 2 ** (BITS - 1))


def _scale(rows: Floats) -> Floats:
    """Return the scale of each output, with which the largest step clips no weight."""
    largest = np.maximum(np.abs(rows).max(axis=1), np.float32(SMALLEST))
    return largest / np.float32((2 ** (BITS - 1) - 1) * STEPS)


def _search_rows(rows: Floats, weights: Floats) -> Floats:
    top = 2 ** (BITS - 1)
    blocks, weights = rows.reshape(len(rows), -1, BLOCK), weights.reshape(-1, BLOCK)
    unit = _scale(rows)[:, None]
    scales = np.zeros(blocks.shape[:2], np.float32)
    least = np.full_like(scales, np.inf)
    for step in range(1, STEPS + 1):
        scale = (unit * np.float32(step))[:, :, None]
        error = (np.square(np.clip(np.rint(blocks / scale), -top, top - 1) * scale - blocks) * weights).sum(axis=2)
        scales = np.where(error < least, scale[:, :, 0], scales)
        least = np.minimum(error, least)
    return scales
