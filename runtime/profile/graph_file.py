"""What a bundle's ONNX file says about its nodes: the profiler leaves out the weights that a kernel has packed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from edge.errors import BundleError
from edge.runtime.profile.protobuf import WireError, fields, integers, text

# Bits of one value by TensorProto.DataType, onnx/onnx.proto.
BITS = {1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 16: 16, 21: 4, 22: 4}


@dataclass(frozen=True)
class Node:
    """One node: `weights` holds the bytes of each of its inputs that is stored in the bundle, in their order."""

    op_type: str
    weights: list[int] = field(default_factory=list)
    attributes: dict[str, int] = field(default_factory=dict)  # those that are integers


def read_graph(path: Path) -> dict[str, Node]:
    """The nodes of an ONNX file by name.

    Raises:
        OSError: it cannot be read.
        BundleError: it is no ONNX file.
    """
    try:
        return _nodes(memoryview(path.read_bytes()))
    except WireError as e:
        raise BundleError(f"{path} is no ONNX file ({e}); export or copy the bundle again.") from None


def _nodes(model: memoryview) -> dict[str, Node]:
    graphs = [value for number, value in fields(model) if number == 7 and not isinstance(value, int)]
    if len(graphs) != 1:
        raise WireError(f"it holds {len(graphs)} graphs, and should hold one")
    nodes: list[memoryview] = []
    sizes: dict[str, int] = {}
    for number, value in fields(graphs[0]):
        if isinstance(value, int):
            continue
        if number == 1:
            nodes.append(value)
        elif number == 5:
            name, size = _initializer(value)
            sizes[name] = size
    return dict(_node(node, sizes) for node in nodes)


def _initializer(data: memoryview) -> tuple[str, int]:
    """Name and bytes of a TensorProto."""
    name, dims, kind = "", list[int](), 0
    for number, value in fields(data):
        if number == 1:
            dims += integers(value)
        elif number == 2 and isinstance(value, int):
            kind = value
        elif number == 8:
            name = text(value)
    return name, -(-math.prod(dims) * BITS.get(kind, 0) // 8)


def _node(data: memoryview, sizes: dict[str, int]) -> tuple[str, Node]:
    name, op_type, weights, attributes = "", "", list[int](), dict[str, int]()
    for number, value in fields(data):
        if number == 1:
            if (size := sizes.get(text(value))) is not None:
                weights.append(size)
        elif number == 3:
            name = text(value)
        elif number == 4:
            op_type = text(value)
        elif number == 5 and not isinstance(value, int):
            attributes |= _attribute(value)
    return name, Node(op_type, weights, attributes)


def _attribute(data: memoryview) -> dict[str, int]:
    """Name and value of an AttributeProto that holds an integer."""
    name, found = "", None
    for number, value in fields(data):
        if number == 1:
            name = text(value)
        elif number == 3 and isinstance(value, int):
            found = value - (1 << 64) if value >> 63 else value  # two's complement
    return {} if found is None else {name: found}
