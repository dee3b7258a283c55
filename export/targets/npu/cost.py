"""Cost of a step of a graph on any device, counted in the graph itself."""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx_ir as ir

from edge.export.targets.npu.qdq import CROSS, PAST, name_of
from edge.targets import Cost


def multiply_adds(graph: ir.Graph) -> int:
    """Count the multiply-adds of a float graph whose shapes are all known: of matrix products and convolutions."""
    found = 0
    for node in graph:
        if node.op_type in {"Gemm", "MatMul", "Conv"}:
            made, factor = _shape(node.outputs[0]), _shape(node.inputs[1])
            if node.op_type == "Conv":  # the factor is [out, in / groups, *kernel]
                summed = math.prod(factor[1:])
            else:
                turned = "transB" in node.attributes and node.attributes["transB"].as_int() == 1
                summed = factor[-1] if turned else factor[-2]
            found += math.prod(made) * summed
    return found


def cost_of(graph: ir.Graph, products: int) -> Cost:
    """Return the cost of a graph in integers. products: the multiply-adds of its float form."""
    kv = [value for value in graph.inputs if name_of(value).startswith((PAST, CROSS))]
    rest = [value for value in (*graph.inputs, *graph.outputs) if value not in kv]
    weights = sum(value.const_value.nbytes for value in graph.initializers.values() if value.const_value is not None)
    return Cost(weights, _bytes(kv), _bytes(rest), products)


def _bytes(values: Iterable[ir.Value]) -> int:
    found = 0
    for value in values:
        assert value.dtype is not None
        found += math.prod(_shape(value)) * value.dtype.bitwidth // 8
    return found


def _shape(value: ir.Value | None) -> tuple[int, ...]:
    assert value is not None and value.shape is not None
    return value.shape.numpy()
