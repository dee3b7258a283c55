"""Costs of one run of a node: bytes moved and operations, by its shapes, its weights and the rows in the KV cache."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from edge.runtime.profile.graph_file import Node

BYTES = {
    "float": 4, "double": 8, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1,
}  # fmt: skip
PRODUCTS = {"MatMul", "FusedMatMul", "Gemm", "MatMulNBits", "MatMulInteger", "MatMulIntegerToFloat"}
ATTENTION = {"GroupQueryAttention", "MultiHeadAttention"}
FREE = {"Reshape", "Squeeze", "Unsqueeze", "Shape", "Identity"}  # the result is another name for the same bytes
LOOKUPS = {"Gather", "GatherBlockQuantized", "GgufRows", "Slice"}  # read as much as they write, not all that they could
MOVES = {"Transpose", "Concat", "Split", "Pad", "Cast", "Expand"}
ONE_EACH = {
    "Abs", "Add", "BiasGelu", "Clip", "DequantizeLinear", "Div", "Erf", "Exp", "FastGelu", "Gelu",
    "LayerNormalization", "Log", "Max", "Min", "Mul", "Neg", "Pow", "QuantizeLinear", "QuickGelu", "ReduceMax",
    "ReduceMean", "ReduceSum", "Relu", "Sigmoid", "SimplifiedLayerNormalization", "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization", "Softmax", "Sqrt", "Sub", "Tanh", "Where",
}  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """Bytes and operations of one run; None where they are not known. `arithmetic` names the peak that the operations
    are held against, a key of `edge.runtime.costs.record.Peaks.gemm_gflop_per_s`."""

    bytes: int | None
    flops: int | None
    arithmetic: str | None


@dataclass(frozen=True)
class Shape:
    """One input or output."""

    kind: str
    dims: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        return self.count * BYTES.get(self.kind, 4)


def shapes(listed: Any) -> list[Shape]:
    """Shapes as the profiler lists them: [{"float": [1, 128, 576]}, ...]."""
    return [Shape(kind, tuple(dims)) for entry in listed or [] for kind, dims in entry.items()]


def cost(
    op_type: str,
    inputs: list[Shape],
    outputs: list[Shape],
    node: Node | None,
    *,
    rows: int = 0,
    window: int | None = None,
) -> Cost:
    """Compute the cost of one run of a node.

    A product or attention has two operations for each multiplication and addition; what works value by value is counted
    as one operation for each, whichever it is. Bytes count once what is read or written at least once.

    Args:
        inputs, outputs: as the profiler lists them: without weights that the kernel has packed.
        node: what the file says about it; None for a node that onnxruntime made of others.
        rows: in the KV cache before the run. `window`: how many of them the layer attends to; default: all.
    """
    if not inputs or not outputs:
        return Cost(None, None, None)
    if node is not None and node.op_type in PRODUCTS:
        op_type = node.op_type  # of int8 products, which kernels of our own compute as others
    if op_type in PRODUCTS:
        return _product(op_type, inputs, outputs, node)
    if op_type == "GroupQueryAttention":
        return _cached_attention(inputs, outputs, rows, window)
    if op_type == "MultiHeadAttention":
        return _attention(inputs, outputs)
    if op_type in FREE:
        return Cost(0, 0, None)
    written = sum(shape.nbytes for shape in outputs)
    if op_type in LOOKUPS:
        return Cost(2 * written, 0, None)
    moved = sum(shape.nbytes for shape in inputs) + written
    if op_type in MOVES:
        return Cost(moved, 0, None)
    values = max(inputs[0].count, outputs[0].count)
    return Cost(moved, values, "float32") if op_type in ONE_EACH else Cost(moved, None, None)


def _product(op_type: str, inputs: list[Shape], outputs: list[Shape], node: Node | None) -> Cost:
    a, out = inputs[0], outputs[0]
    rows = out.dims[-2] if len(out.dims) > 1 else 1
    inner = a.dims[-1] if len(a.dims) < 2 or a.dims[-2] == rows else a.dims[-2]  # the first operand may be transposed
    columns = out.dims[-1]
    if op_type in {"MatMulNBits", "MatMulInteger", "MatMulIntegerToFloat"}:
        inner = a.dims[-1]
        # Kernels of our own may give what a gate lets through, which is half of the product's columns.
        if node is not None and node.weights and op_type.startswith("MatMulInteger"):
            columns = max(node.weights.values()) // inner  # a byte each
        elif node is not None:
            columns = node.attributes.get("N", columns)
    if node is not None and node.weights:
        second = sum(node.weights.values())
    elif len(inputs) > 1 and len(inputs[1].dims) > 1:
        second = inputs[1].nbytes
    else:  # packed, and no file says how: onnxruntime made this node of others
        second = inner * columns * BYTES.get(a.kind, 4)
    flops = 2 * out.count // out.dims[-1] * columns * inner
    return Cost(a.nbytes + second + out.nbytes, flops, _arithmetic(op_type, a, node))


def _arithmetic(op_type: str, a: Shape, node: Node | None) -> str:
    if op_type == "MatMulNBits":
        attributes = node.attributes if node is not None else {}
        if "parts" in attributes:  # matrices of a GGUF file
            return "int8"
        if attributes.get("accuracy_level", 0) < 4:  # weights are turned to floats
            return "float32"
        return "int4" if attributes.get("bits", 4) == 4 else "int8"
    return "int8" if a.kind in {"int8", "uint8"} or op_type.startswith("MatMulInteger") else "float32"


def _cached_attention(inputs: list[Shape], outputs: list[Shape], rows: int, window: int | None) -> Cost:
    """Attention of S queries to the rows of the KV cache and, each, to those of the S before it."""
    past = next((shape for shape in inputs[1:] if len(shape.dims) == 4), None)
    if past is None:
        return Cost(None, None, None)
    size = outputs[0].dims[1]
    _, heads, _, width = past.dims
    seen = [min(rows + i + 1, window or rows + i + 1) for i in range(size)]  # by each query
    span = min(rows + size, (window or rows) + size)
    cache = 2 * heads * width * BYTES.get(past.kind, 4) * (span + size)  # read, and the S new ones written
    return Cost(inputs[0].nbytes + outputs[0].nbytes + cache, 4 * outputs[0].dims[2] * sum(seen), "float32")


def _attention(inputs: list[Shape], outputs: list[Shape]) -> Cost:
    if inputs[0].dims[-1] == 3 * outputs[0].dims[-1]:  # queries, keys and values of the same rows
        rows = inputs[0].dims[1]
    elif len(inputs) > 2:
        key = inputs[1].dims
        rows = key[1] if len(key) == 3 else key[2]  # [1, T, H * D] or [1, H, T, D]
    else:
        return Cost(None, None, None)
    moved = sum(shape.nbytes for shape in inputs) + sum(shape.nbytes for shape in outputs)
    return Cost(moved, 4 * outputs[0].count * rows, "float32")
