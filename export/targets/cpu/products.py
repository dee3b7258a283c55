"""Products with stored matrices, and rows of an embedding: where integers and float16 meet float32 activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from edge.export.graph.operators import Value, scalar
from edge.export.graph.weights import StoredFloat, StoredGguf, StoredRows

if TYPE_CHECKING:
    from edge.export.graph.linear import Embedding, Linear
    from edge.export.targets.cpu.lowering import CPU

FLOAT, FLOAT16 = ir.DataType.FLOAT, ir.DataType.FLOAT16
# Activations rounded to 8 bits are uint8: onnxruntime's kernels for int8 ones are a hundred times slower.
STEP = 1 / 127  # relative to the largest of a row
FINER = "finer"  # what the step of the rest is called, by which a reader knows that there is one
MIDDLE = 128  # their zero point
INT8_ACTIVATIONS = 4  # MatMulNBits' accuracy_level: 4 and 8-bit weights meet activations rounded to 8 bits


@dataclass(frozen=True)
class Rounded:
    """Rows in 8 bits: ``largest * step * (values - zero)``, where `largest` [1, S, 1] is None for ones.

    rest: what these leave out, in steps of `finer` instead of `step`; None where that is not made up for.
    """

    values: Value
    step: Value
    zero: Value
    largest: Value | None
    rest: Value | None = None
    finer: Value | None = None


def rounded(op: CPU, x: Value, step: float | None, precise: bool) -> Rounded:
    """Round x [1, S, K] in steps of `step`; None: each row in its own step, so that no row depends on another. precise:
    with the rest, if rows have separate steps.

    A row of zeros stays one: whatever 0 / 0 is rounded to is multiplied by 0.
    """
    size = scalar(op, "step", STEP if step is None else step)
    zero = op.initializer(ir.tensor(np.uint8(MIDDLE), name="zero"))
    if step is not None:
        return Rounded(op.QuantizeLinear(x, size, zero), size, zero, None)
    largest = op.ReduceMax(op.Abs(x), [-1], keepdims=1)
    part = op.Div(x, largest)
    values = op.QuantizeLinear(part, size, zero)
    if not precise:
        return Rounded(values, size, zero, largest)
    finer = scalar(op, FINER, STEP * STEP / 2)  # the rest is half a step at most
    rest = op.QuantizeLinear(op.Sub(part, op.DequantizeLinear(values, size, zero)), finer, zero)
    return Rounded(values, size, zero, largest, rest, finer)


def shared(op: CPU, x: Value, matrices: Sequence[Linear]) -> Value | Rounded:
    """int8 matrices that round x alike read it rounded once."""
    first, *others = (matrix.stored for matrix in matrices)
    if isinstance(first, StoredRows) and all(
        isinstance(o, StoredRows) and (o.step, o.precise) == (first.step, first.precise) for o in others
    ):
        return rounded(op, x, first.step, first.precise)
    return x


def product(op: CPU, x: Value | Rounded, matrix: Linear) -> Value:
    """Multiply x with a stored matrix in floating point, in integer blocks, or in int8 for many rows."""
    stored = matrix.stored
    if isinstance(stored, StoredRows):
        return _of_rows(op, x if isinstance(x, Rounded) else rounded(op, x, stored.step, stored.precise), matrix)
    assert isinstance(x, Value), "only int8 reads what is rounded"
    if isinstance(stored, StoredFloat):
        weight = matrix.weight  # what is stored in float16 onnxruntime converts once, when it loads a graph
        y = op.matmul(x, op.Cast(weight, to=FLOAT) if weight.dtype == FLOAT16 else weight, transposed=True)
        return y if matrix.bias is None else op.Add(y, matrix.bias)
    if isinstance(stored, StoredGguf):
        if stored.inputs is not None:
            x = _in_order(op, x, stored.inputs)
        return op.of_gguf.MatMulGguf(x, matrix.bias, *matrix.weights, **gguf_parts(stored))
    return op.fused.MatMulNBits(
        x,
        matrix.weight,
        matrix.scales,
        matrix.zero_points,
        None,
        matrix.bias,
        N=stored.rows,
        K=stored.columns,
        bits=stored.bits,
        block_size=stored.block_size,
        accuracy_level=INT8_ACTIVATIONS,
    )


def _in_order(op: CPU, x: Value, places: NDArray[np.int64]) -> Value:
    """x [B, S, K] with its channel j at places[j], of which those that stay neighbours are moved together."""
    order, size = np.argsort(places), len(places)
    starts = np.flatnonzero(np.diff(order, prepend=order[0]) != 1)  # of what follows each other
    together = int(np.gcd.reduce(np.append(starts, size)))
    moved = (order[::together] // together).tolist()
    parts = op.Reshape(x, [0, 0, size // together, together])
    return op.Reshape(op.Gather(parts, op.Constant(value_ints=moved), axis=2), [0, 0, size])


def _of_rows(op: CPU, x: Rounded, matrix: Linear) -> Value:
    bias = matrix.bias if x.largest is None else None
    y = op.fused.MatMulIntegerToFloat(x.values, matrix.weight, x.step, matrix.scales, x.zero, None, bias)
    if x.rest is not None:
        y = op.Add(y, op.fused.MatMulIntegerToFloat(x.rest, matrix.weight, x.finer, matrix.scales, x.zero))
    if x.largest is not None:
        y = op.Mul(y, x.largest)
        return y if matrix.bias is None else op.Add(y, matrix.bias)
    return y


def rows(op: CPU, ids: Value, matrix: Embedding) -> Value:
    """Rows of an embedding, as floats."""
    stored = matrix.stored
    if isinstance(stored, StoredFloat):
        x = op.Gather(matrix.weight, ids, axis=0)
        return op.Cast(x, to=FLOAT) if matrix.weight.dtype == FLOAT16 else x
    if isinstance(stored, StoredGguf):
        return op.of_gguf.GgufRows(ids, matrix.weight, **gguf_parts(stored))
    x = op.fused.GatherBlockQuantized(
        matrix.weight,
        ids,
        matrix.scales,
        matrix.zero_points,
        gather_axis=0,
        quantize_axis=1,
        bits=stored.bits,
        block_size=stored.block_size,
    )
    if stored.columns % stored.block_size:  # the last block is filled up with zero points
        x = op.Slice(x, [0], [stored.columns], [-1])
    return x


def gguf_parts(stored: StoredGguf, prefix: str = "") -> dict[str, int]:
    """Attributes of an operator over matrices of a GGUF file: see `edge.runtime.kernels.gguf`."""
    made = {"K": stored.columns, "N": stored.rows, "parts": len(stored.weights)}
    for i, (kind, count, heads) in enumerate(zip(stored.types, stored.counts, stored.heads, strict=True)):
        made |= {f"part.{i}.type": kind, f"part.{i}.N": count, f"part.{i}.heads": heads}
    return {f"{prefix}{name}": value for name, value in made.items()}
