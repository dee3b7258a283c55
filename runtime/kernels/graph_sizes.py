"""Constants of a graph that ask for a tensor far larger than the graph.

A few operators make a tensor whose size is a number in the file. Where that number is a constant, alone or behind what
passes it on, it is looked at before onnxruntime computes it. What operators compute the size is not followed, and other
ways to make large tensors remain, such as the product of two long vectors: only limits of the process bound these.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

from edge.runtime.onnx_proto import AttributeNumbers, TensorNumbers

LARGEST = 1 << 26  # numbers of a tensor that a constant may ask for: a step of the largest models makes a tenth
MOST = 64  # numbers that a size may have
# Inputs that say how large what an operator makes is.
BY_INPUTS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("BlackmanWindow", "ConstantOfShape", "HammingWindow", "HannWindow"), (0,)),
    **dict.fromkeys(("AffineGrid", "CenterCropPad", "Col2Im", "DFT", "Expand", "OneHot", "Pad", "Tile"), (1,)),
    **{"MaxUnpool": (2,), "MelWeightMatrix": (0, 1), "Range": (0, 1, 2), "Resize": (2, 3), "Upsample": (1,)},
}
BY_ATTRIBUTES = frozenset(
    {
        *("AveragePool", "Conv", "ConvInteger", "ConvTranspose", "LpPool", "MaxPool", "MaxRoiPool", "MaxUnpool"),
        *("Multinomial", "Pad", "QLinearConv", "RandomNormal", "RandomUniform", "RoiAlign", "Upsample"),
    }
)
SIZED = BY_INPUTS.keys() | BY_ATTRIBUTES
PASSING = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"})  # they keep the numbers of their input
FORMATS = {1: "f", 6: "i", 7: "q", 10: "e", 11: "d"}  # of raw numbers, by TensorProto.DataType


class Sizes:
    """The constants of a graph. around: of the graph that it is in."""

    def __init__(self, graph: Any, around: Sizes | None) -> None:
        self._graph, self._around = graph, around
        self._constants: dict[str, Any] | None = None

    def asked(self, node: Any) -> float:
        """The size that constants ask this operator to make, as far as they are known."""
        inputs = BY_INPUTS.get(node.op_type, ())
        given = [self._numbers(node.input[at]) if at < len(node.input) else None for at in inputs]
        if node.op_type == "Range":
            start, limit, step = (max(each or (0.0,), key=abs) for each in given)
            sizes = [max(abs(limit - start), 1.0) / (abs(step) or 1.0)]
        else:
            sizes = [_product(numbers) for numbers in given if numbers]
        if node.op_type in BY_ATTRIBUTES:
            for attribute in node.attribute:
                many = AttributeNumbers.FromString(attribute.SerializeToString())
                sizes += [_product(many.ints[: MOST + 1]), _product(many.floats[: MOST + 1]), abs(attribute.i)]
        return max(sizes, default=0.0)

    def _numbers(self, name: str) -> Sequence[float] | None:
        """The numbers of a constant; None where it is none that is known here."""
        scope: Sizes | None = self
        for _ in range(MOST):
            while scope is not None and name not in scope._known():
                scope = scope._around
            if scope is None:
                return None
            found = scope._known()[name]
            if not isinstance(found, str):
                return _values(found)
            name = found
        return None

    def _known(self) -> dict[str, Any]:
        """Tensors by their names, and the names of values that others pass on."""
        if self._constants is None:
            self._constants = known = {tensor.name: tensor for tensor in self._graph.initializer}
            for node in self._graph.node:
                if node.op_type == "Constant" and node.output and node.attribute:
                    known[node.output[0]] = node.attribute[0]
                elif node.op_type in PASSING and node.output and node.input:
                    known[node.output[0]] = node.input[0]
        return self._constants


def _product(numbers: Sequence[float]) -> float:
    if len(numbers) > MOST:
        return math.inf
    return math.prod(max(1.0, abs(each)) for each in numbers)


def _values(constant: Any) -> Sequence[float]:
    """The numbers of a tensor or of a constant's attribute."""
    if hasattr(constant, "f"):  # an attribute
        if constant.HasField("t"):
            return _values(constant.t)
        many = AttributeNumbers.FromString(constant.SerializeToString())
        return [constant.f, constant.i, *many.ints[: MOST + 1], *many.floats[: MOST + 1]]
    count, form = math.prod(constant.dims), FORMATS.get(constant.data_type, "")
    if count > MOST or constant.data_location or constant.external_data:
        return () if count <= MOST else (0.0,) * (MOST + 1)
    if constant.raw_data:
        fits = form and len(constant.raw_data) == count * struct.calcsize(f"<{form}")
        return struct.unpack(f"<{count}{form}", constant.raw_data) if fits else ()
    many = TensorNumbers.FromString(constant.SerializeToString())
    return [*many.int32_data, *many.int64_data, *many.float_data, *many.double_data][: MOST + 1]
