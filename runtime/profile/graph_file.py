"""An ONNX file as the profiler reads and writes it; the runtime does without the package onnx.

Source: onnx/onnx.proto, which has these names and numbers. A reader passes over fields that are not named here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from edge.errors import BundleError

# Bits of one value by TensorProto.DataType.
BITS = {1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 16: 16, 21: 4, 22: 4}


PACKAGE = "edge.onnx"
SCALARS = {
    "int64": FieldDescriptorProto.TYPE_INT64,  # enumerations and smaller integers are the same bytes
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
}
REPEATED = "*"
MESSAGES = {
    "ModelProto": {"ir_version": (1, "int64"), "graph": (7, "GraphProto"), "opset_import": (8, "OperatorSetIdProto*")},
    "OperatorSetIdProto": {"domain": (1, "string"), "version": (2, "int64")},
    "GraphProto": {
        "node": (1, "NodeProto*"),
        "name": (2, "string"),
        "initializer": (5, "TensorProto*"),
        "input": (11, "ValueInfoProto*"),
        "output": (12, "ValueInfoProto*"),
    },
    "NodeProto": {
        "input": (1, "string*"),
        "output": (2, "string*"),
        "name": (3, "string"),
        "op_type": (4, "string"),
        "attribute": (5, "AttributeProto*"),
        "domain": (7, "string"),
    },
    "AttributeProto": {"name": (1, "string"), "i": (3, "int64"), "type": (20, "int64")},
    "TensorProto": {"dims": (1, "int64*"), "data_type": (2, "int64"), "name": (8, "string"), "raw_data": (9, "bytes")},
    "ValueInfoProto": {"name": (1, "string"), "type": (2, "TypeProto")},
    "TypeProto": {"tensor_type": (1, "TensorTypeProto")},
    "TensorTypeProto": {"elem_type": (1, "int64")},
}


def _model_proto() -> Any:
    file = FileDescriptorProto(name="onnx.proto", package=PACKAGE)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for member, (number, kind) in fields.items():
            of, repeated = kind.removesuffix(REPEATED), kind.endswith(REPEATED)
            label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
            one = {"type": SCALARS[of]} if of in SCALARS else {"type_name": f".{PACKAGE}.{of}"}
            message.field.add(name=member, number=number, label=label, **one)
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.ModelProto"))


ModelProto = _model_proto()


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
    return Node(node.op_type, weights, {each.name: each.i for each in node.attribute if each.HasField("i")})
