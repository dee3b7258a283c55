"""int8 products, whose rows have one scale each, as products of our kernels.

`edge.export.lower.cpu.products` writes such a product as seven operators, of which the first four make integers of its
rows; our kernels round rows themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

THEIRS, PRODUCT, OURS = "com.microsoft", "MatMulIntegerToFloat", "MatMulNBits"
ROWS = "by_rows"  # the attribute of those that were made of PRODUCT: one block for each column
STEP, MIDDLE = np.float32(1 / 127).tobytes(), bytes([128])  # of rows relative to their largest; their zero point
UNIT = 32  # that the number of inputs must be a multiple of
INT = 2  # AttributeProto.AttributeType
VALUES, WEIGHT, SCALES, ZERO, WEIGHT_ZERO, BIAS = 0, 1, 3, 4, 5, 6  # inputs of PRODUCT
BIAS_OF_OURS = 5


def take_rows(graph: Any) -> None:
    """Let int8 products of a graph read their rows as they are, where they are such as the export writes."""
    nodes = list(graph.node)
    made = {name: node for node in nodes for name in node.output if name}
    readers: dict[str, list[Any]] = {}
    for node in nodes:
        for name in {*_read(node)}:
            readers.setdefault(name, []).append(node)
    stored = {tensor.name: tensor for tensor in graph.initializer}
    outputs = {output.name for output in graph.output}
    gone: set[str] = set()

    def reader(name: str) -> Any:
        """The only node that reads it, or None."""
        return readers[name][0] if name not in outputs and len(readers.get(name, ())) == 1 else None

    for node in nodes:
        if (node.op_type, node.domain) != (PRODUCT, THEIRS):
            continue
        inputs = [*node.input, *[""] * 7]
        rows = _rounded(inputs, made, stored)
        weight = stored.get(inputs[WEIGHT])
        if rows is None or weight is None or len(weight.dims) != 2 or weight.dims[0] % UNIT:
            continue
        x, largest = rows
        times = reader(node.output[0])
        if times is None or times.op_type != "Mul" or {*times.input} != {node.output[0], largest}:
            continue
        last, bias = times, ""
        add = reader(times.output[0])
        if add is not None and add.op_type == "Add":
            (other,) = {*add.input} - {times.output[0]} or {""}
            if other in stored and [*stored[other].dims] == [weight.dims[1]]:
                last, bias = add, other
                gone.add(add.name)
        gone.add(times.name)
        node.op_type = OURS
        del node.input[:], node.output[:], node.attribute[:]
        node.input.extend([x, inputs[WEIGHT], inputs[SCALES], "", "", bias][: 6 if bias else 3])
        node.output.append(last.output[0])
        numbers = {"K": weight.dims[0], "N": weight.dims[1], "bits": 8, "block_size": weight.dims[0]}
        for name, number in (numbers | {"accuracy_level": 4, ROWS: 1}).items():
            node.attribute.add(name=name, i=number, type=INT)
    if gone:
        kept = [node for node in nodes if node.name not in gone]
        del graph.node[:]
        graph.node.extend(_needed(kept, outputs))


def _rounded(inputs: list[str], made: dict[str, Any], stored: dict[str, Any]) -> tuple[str, str] | None:
    """What a product's integers were made of: rows, and the largest of each; None where they are others."""
    quantize = made.get(inputs[VALUES])
    if quantize is None or quantize.op_type != "QuantizeLinear" or inputs[WEIGHT_ZERO] or inputs[BIAS]:
        return None
    step, zero = (stored.get(name) for name in quantize.input[1:3])
    divide = made.get(quantize.input[0])
    if step is None or zero is None or (step.raw_data, zero.raw_data) != (STEP, MIDDLE) or divide is None:
        return None
    if inputs[2] != step.name or inputs[ZERO] != zero.name or divide.op_type != "Div":
        return None
    x, largest = divide.input
    reduce = made.get(largest)
    if reduce is None or reduce.op_type != "ReduceMax":
        return None
    size = made.get(reduce.input[0])
    return (x, largest) if size is not None and size.op_type == "Abs" and [*size.input] == [x] else None


def _needed(nodes: list[Any], outputs: set[str]) -> list[Any]:
    """The nodes that something reads."""
    read, kept = set(outputs), list[Any]()
    for node in reversed(nodes):
        if any(name in read for name in node.output):
            kept.append(node)
            read |= set(_read(node))
    return kept[::-1]


def _read(node: Any) -> Iterator[str]:
    yield from node.input
    for attribute in node.attribute:
        if attribute.HasField("g"):
            for inner in attribute.g.node:
                yield from _read(inner)
