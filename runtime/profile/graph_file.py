"""An ONNX file as the profiler reads it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from edge.errors import BundleError
from edge.runtime.kernels.wires import numbers
from edge.runtime.onnx_proto import ModelProto

# Bits of one value by TensorProto.DataType.
BITS = {1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 16: 16, 21: 4, 22: 4}


@dataclass(frozen=True)
class Node:
    """One node: `weights` holds the bytes of those of its inputs that are stored in the bundle, by their names."""

    op_type: str
    weights: dict[str, int] = field(default_factory=dict)
    attributes: dict[str, int] = field(default_factory=dict)  # those that are integers


def read_graph(path: Path) -> dict[str, Node]:
    """The nodes of an ONNX file by name: onnxruntime's profiler omits the weights that a kernel has packed.

    Raises:
        OSError: it cannot be read.
        BundleError: it is no ONNX file.
    """
    try:
        graph = ModelProto.FromString(path.read_bytes()).graph
        sizes = {tensor.name: _nbytes(tensor) for tensor in graph.initializer}
        nodes = {node.name: _node(node, sizes) for node in graph.node}
    except (DecodeError, ValueError) as e:
        raise BundleError(f"{path} is no ONNX file ({e}); export or copy the bundle again.") from None
    if not nodes:
        raise BundleError(f"{path} is no ONNX file (it has no nodes); export or copy the bundle again.")
    return nodes


def _nbytes(tensor: Any) -> int:
    """Bytes of a TensorProto."""
    count: int = math.prod(tensor.dims)
    return -(-count * BITS.get(tensor.data_type, 0) // 8)


def _node(node: Any, sizes: dict[str, int]) -> Node:
    weights = {name: sizes[name] for name in node.input if name in sizes}
    return Node(node.op_type, weights, numbers(node))
