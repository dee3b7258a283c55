"""Products with stored matrices, and the embedding: where integers and float16 meet float32 activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from edge.export.graph.weights import Stored, StoredBlocks, StoredFloat, StoredRows, Weights, parameter, view

Value = ir.Value

# Activations rounded to 8 bits are uint8: onnxruntime's kernels for int8 ones are a hundred times slower.
STEP = 1 / 127  # relative to the largest of a row
FINER = "finer"  # what the step of the rest is called, by which a reader knows that there is one
MIDDLE = 128  # their zero point
INT8_ACTIVATIONS = 4  # MatMulNBits' accuracy_level: 4 and 8-bit weights meet activations rounded to 8 bits


def fused(op: OpBuilder) -> OpBuilder:
    """onnxruntime's own operators."""
    return op.builder.opset("com.microsoft", 1)


def scalar(op: OpBuilder, name: str, value: float) -> Value:
    """A float32 constant."""
    return op.initializer(ir.tensor(np.float32(value), name=name))


def float32(op: OpBuilder, weight: nn.Parameter) -> Value:
    """What is stored in float16 is computed with in float32; onnxruntime converts it once, when it loads a graph."""
    return op.Cast(weight, to=ir.DataType.FLOAT) if weight.dtype == ir.DataType.FLOAT16 else weight


@dataclass(frozen=True)
class Rounded:
    """Rows in 8 bits: ``largest * step * (values - zero)``, where `largest` [1, S, 1] is None for ones.

    rest: what these leave out, in steps of `finer` in the place of `step`; None where that is not made up for.
    """

    values: Value
    step: Value
    zero: Value
    largest: Value | None
    rest: Value | None = None
    finer: Value | None = None


def rounded(op: OpBuilder, x: Value, step: float | None, precise: bool) -> Rounded:
    """x [1, S, K] in steps of `step`, or each row in its own, so that no row depends on another. precise: with the
    rest, where rows have their own.

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


class Linear(nn.Module):
    """y = x W^T + b for one stored matrix: in floating point, in integer blocks, or int8 for products of many rows."""

    def __init__(self, stored: Stored, bias: nn.Parameter | None = None):
        super().__init__()
        self.stored = stored
        self.weight = parameter(stored.weight)
        if not isinstance(stored, StoredFloat):
            self.scales = parameter(stored.scales)
        if isinstance(stored, StoredBlocks):
            self.zero_points = None if stored.zero_points is None else parameter(stored.zero_points)
        self.bias = bias

    def forward(self, op: OpBuilder, x: Value | Rounded) -> Value:
        """x [1, S, K] to [1, S, N]. What several int8 matrices read can be rounded once, before."""
        if isinstance(x, Rounded):
            return self._product(op, x)
        if isinstance(self.stored, StoredFloat):
            y = fused(op).FusedMatMul(x, float32(op, self.weight), transB=1)
            return y if self.bias is None else op.Add(y, self.bias)
        if isinstance(self.stored, StoredRows):
            return self._product(op, rounded(op, x, self.stored.step, self.stored.precise))
        return fused(op).MatMulNBits(
            x,
            self.weight,
            self.scales,
            self.zero_points,
            None,
            self.bias,
            N=self.stored.rows,
            K=self.stored.columns,
            bits=self.stored.bits,
            block_size=self.stored.block_size,
            accuracy_level=INT8_ACTIVATIONS,
        )

    def _product(self, op: OpBuilder, x: Rounded) -> Value:
        bias = self.bias if x.largest is None else None
        y = fused(op).MatMulIntegerToFloat(x.values, self.weight, x.step, self.scales, x.zero, None, bias)
        if x.rest is not None:
            y = op.Add(y, fused(op).MatMulIntegerToFloat(x.rest, self.weight, x.finer, self.scales, x.zero))
        if x.largest is not None:
            y = op.Mul(y, x.largest)
            return y if self.bias is None else op.Add(y, self.bias)
        return y


def linear(weights: Weights, name: str, group: str, *, bias: bool = False) -> Linear:
    """The checkpoint's linear layer `name`."""
    b = weights.vector([f"{name}.bias"], f"{name}.bias", group) if bias else None
    return Linear(weights.matrix(f"{name}.weight", group), b)


class Projections(nn.Module):
    """Linear layers that read the same input: one product wherever their formats allow it.

    Returns one packed output, or one for each of `names`. bias: whether they have one, or the names of those that do.
    """

    def __init__(
        self,
        weights: Weights,
        names: Sequence[str],
        packed: str,
        group: str,
        *,
        bias: bool | Sequence[str] = False,
    ):
        super().__init__()
        biased = set(names if bias else ()) if isinstance(bias, bool) else set(bias)
        stored = weights.matrices([f"{n}.weight" for n in names], f"{packed}.weight", group)
        if len(stored) == 1:
            b = None
            if biased:
                lacking = {f"{n}.bias": weights.rows(f"{n}.weight") for n in names if n not in biased}
                b = weights.vector([f"{n}.bias" for n in names], f"{packed}.bias", group, zeros=lacking)
            self.parts = nn.ModuleList([Linear(stored[0], b)])
        else:
            self.parts = nn.ModuleList([linear(weights, n, group, bias=n in biased) for n in names])

    def forward(self, op: OpBuilder, x: Value) -> list[Value]:
        first, *others = (part.stored for part in self.parts if isinstance(part, Linear))
        if isinstance(first, StoredRows) and all(
            isinstance(o, StoredRows) and (o.step, o.precise) == (first.step, first.precise) for o in others
        ):
            quantized = rounded(op, x, first.step, first.precise)
            return [part(op, quantized) for part in self.parts]
        return [part(op, x) for part in self.parts]


class Embedding(nn.Module):
    """The rows of the token embedding; `scale` multiplies them."""

    def __init__(self, weights: Weights, name: str, *, scale: float | None = None):
        super().__init__()
        stored = weights.matrix(f"{name}.weight", "embedding")
        assert not isinstance(stored, StoredRows), "an embedding is read row by row; this form is transposed"
        self.stored = stored
        self.scale = scale
        if isinstance(stored, StoredFloat):
            self.weight = parameter(stored.weight)
        else:
            self.weight = parameter(view(stored.weight, [stored.rows, stored.weight.nbytes // stored.rows]))
            self.scales = parameter(stored.scales)
            self.zero_points = None if stored.zero_points is None else parameter(stored.zero_points)

    def forward(self, op: OpBuilder, input_ids: Value) -> Value:
        x = self._rows(op, input_ids)
        return x if self.scale is None else op.Mul(x, scalar(op, "scale", self.scale))

    def _rows(self, op: OpBuilder, input_ids: Value) -> Value:
        if isinstance(self.stored, StoredFloat):
            x = op.Gather(self.weight, input_ids, axis=0)
            return op.Cast(x, to=ir.DataType.FLOAT) if self.weight.dtype == ir.DataType.FLOAT16 else x
        x = fused(op).GatherBlockQuantized(
            self.weight,
            input_ids,
            self.scales,
            self.zero_points,
            gather_axis=0,
            quantize_axis=1,
            bits=self.stored.bits,
            block_size=self.stored.block_size,
        )
        if self.stored.columns % self.stored.block_size:  # the last block is filled up with zero points
            x = op.Slice(x, [0], [self.stored.columns], [-1])
        return x
