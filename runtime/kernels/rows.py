"""int8 products, whose rows have one scale each, as products of our kernels.

`edge.export.lower.cpu.products` writes such a product as seven operators, of which the first four make integers of its
rows; our kernels round rows themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edge.runtime.kernels.nodes import PRODUCT, THEIRS
from edge.runtime.kernels.wires import INT, Wires, set_inputs

INT8_PRODUCT = "MatMulIntegerToFloat"
ROWS = "by_rows"  # the attribute of those that were made of INT8_PRODUCT: one block for each column
STEP, MIDDLE = np.float32(1 / 127).tobytes(), bytes([128])  # of rows relative to their largest; their zero point
UNIT = 32  # that the number of inputs must be a multiple of
VALUES, WEIGHT, SIZE, SCALES, ZERO, WEIGHT_ZERO, BIAS = range(7)  # inputs of INT8_PRODUCT


def take_rows(graph: Any) -> None:
    """Let int8 products of a graph read float rows, where the product is such as the export writes."""
    wires, gone = Wires(graph), list[int]()
    stored = {tensor.name: tensor for tensor in graph.initializer}
    for node in wires.nodes:
        if (node.op_type, node.domain) != (INT8_PRODUCT, THEIRS):
            continue
        inputs = [*node.input, *[""] * 7]
        rows, weight = _rounded(inputs, wires, stored), stored.get(inputs[WEIGHT])
        if rows is None or weight is None or len(weight.dims) != 2 or weight.dims[0] % UNIT:
            continue
        x, largest = rows
        last = wires.only_reader(node.output[0])
        if last is None or wires.nodes[last].op_type != "Mul":
            continue
        if {*wires.nodes[last].input} != {node.output[0], largest}:
            continue
        gone.append(last)
        sum_of, bias = wires.only_reader(wires.nodes[last].output[0]), ""
        if sum_of is not None and wires.nodes[sum_of].op_type == "Add":
            (other,) = {*wires.nodes[sum_of].input} - {wires.nodes[last].output[0]} or {""}
            if other in stored and [*stored[other].dims] == [weight.dims[1]]:
                last, bias = sum_of, other
                gone.append(last)
        node.op_type = PRODUCT
        set_inputs(node, [x, inputs[WEIGHT], inputs[SCALES], "", "", bias])
        node.output[0] = wires.nodes[last].output[0]
        del node.attribute[:]
        numbers = {"K": weight.dims[0], "N": weight.dims[1], "bits": 8, "block_size": weight.dims[0]}
        for name, number in (numbers | {"accuracy_level": 4, ROWS: 1}).items():
            node.attribute.add(name=name, i=number, type=INT)
    if gone:
        wires.drop(gone)


def _rounded(inputs: list[str], wires: Wires, stored: dict[str, Any]) -> tuple[str, str] | None:
    """Return the source of a product's integers: the rows, and the largest value of each; None where they are quantized
    otherwise."""
    quantize = _maker(wires, inputs[VALUES], "QuantizeLinear")
    divide = None if quantize is None else _maker(wires, quantize.input[0], "Div")
    if quantize is None or divide is None or inputs[WEIGHT_ZERO] or inputs[BIAS]:
        return None
    step, zero = (stored.get(name) for name in quantize.input[1:3])
    if step is None or zero is None or (step.raw_data, zero.raw_data) != (STEP, MIDDLE):
        return None
    x, largest = divide.input
    reduce = _maker(wires, largest, "ReduceMax")
    size = None if reduce is None else _maker(wires, reduce.input[0], "Abs")
    same = (inputs[SIZE], inputs[ZERO]) == (step.name, zero.name)
    return (x, largest) if same and size is not None and [*size.input] == [x] else None


def _maker(wires: Wires, name: str, op_type: str) -> Any:
    """The node that makes a value, where it is such an operator."""
    place = wires.maker(name)
    return wires.nodes[place] if place is not None and wires.nodes[place].op_type == op_type else None
