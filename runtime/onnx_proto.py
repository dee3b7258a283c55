"""ONNX files in protobuf: the runtime does without the package onnx.

Source: onnx/onnx.proto, which has these names and numbers. Fields that are not named here stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

IR_VERSION, OPSET = 10, 21

PACKAGE = "edge.onnx"
SCALARS = {
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    "float": FieldDescriptorProto.TYPE_FLOAT,
    "int64": FieldDescriptorProto.TYPE_INT64,  # enumerations and smaller integers are the same bytes
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
}
REPEATED = "*"
MESSAGES = {
    "ModelProto": {
        "ir_version": (1, "int64"),
        "graph": (7, "GraphProto"),
        "opset_import": (8, "OperatorSetIdProto*"),
        "training_info": (20, "bytes*"),  # messages, of which nobody reads more than that there are some
        "functions": (25, "bytes*"),
    },
    "OperatorSetIdProto": {"domain": (1, "string"), "version": (2, "int64")},
    "GraphProto": {
        "node": (1, "NodeProto*"),
        "name": (2, "string"),
        "initializer": (5, "TensorProto*"),
        "input": (11, "ValueInfoProto*"),
        "output": (12, "ValueInfoProto*"),
        "value_info": (13, "ValueInfoProto*"),
        "sparse_initializer": (15, "bytes*"),
    },
    "NodeProto": {
        "input": (1, "string*"),
        "output": (2, "string*"),
        "name": (3, "string"),
        "op_type": (4, "string"),
        "attribute": (5, "AttributeProto*"),
        "domain": (7, "string"),
    },
    "AttributeProto": {
        "name": (1, "string"),
        "f": (2, "float"),
        "s": (4, "bytes"),
        "i": (3, "int64"),
        "t": (5, "TensorProto"),
        "g": (6, "GraphProto"),
        "type": (20, "int64"),
    },
    "TensorProto": {
        "dims": (1, "int64*"),
        "data_type": (2, "int64"),
        "name": (8, "string"),
        "raw_data": (9, "bytes"),
        "external_data": (13, "StringStringEntryProto*"),
        "data_location": (14, "int64"),
    },
    # What else attributes and tensors may have, read apart: what is named above is written in another way than it was.
    "AttributeNumbers": {"floats": (7, "float*"), "ints": (8, "int64*")},
    "TensorNumbers": {
        "float_data": (4, "float*"),
        "int32_data": (5, "int64*"),
        "int64_data": (7, "int64*"),
        "double_data": (10, "double*"),
    },
    "StringStringEntryProto": {"key": (1, "string"), "value": (2, "string")},
    "ValueInfoProto": {"name": (1, "string"), "type": (2, "TypeProto")},
    "TypeProto": {"tensor_type": (1, "TensorTypeProto")},
    "TensorTypeProto": {"elem_type": (1, "int64"), "shape": (2, "TensorShapeProto")},
    "TensorShapeProto": {"dim": (1, "DimensionProto*")},
    "DimensionProto": {"dim_value": (1, "int64"), "dim_param": (2, "string")},
}


def _pool() -> DescriptorPool:
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
    return pool


def _classes() -> dict[str, Any]:
    """The class of every message, by name.

    All of them are kept, also those that stand in other messages alone: protobuf makes these when they are asked for
    and keeps them as long as there is a message. While Python's garbage collector takes such a class down, another
    thread could still be given it, and the process ended with the next message of it.
    """
    pool = _pool()
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in MESSAGES}


CLASSES = _classes()
ModelProto, AttributeNumbers, TensorNumbers = (
    CLASSES[name] for name in ("ModelProto", "AttributeNumbers", "TensorNumbers")
)


def model_of(
    nodes: Sequence[Mapping[str, Any]],
    inputs: Mapping[str, int],
    outputs: Mapping[str, int],
    initializers: Sequence[Mapping[str, Any]] = (),
) -> bytes:
    """A model of these nodes. inputs, outputs: the types of their elements by name; they have any shape."""
    given, made = (
        [{"name": name, "type": {"tensor_type": {"elem_type": kind}}} for name, kind in values.items()]
        for values in (inputs, outputs)
    )
    graph = {"name": "small", "node": list(nodes), "initializer": list(initializers), "input": given, "output": made}
    opsets = [{"domain": "", "version": OPSET}, {"domain": "com.microsoft", "version": 1}]
    content: bytes = ModelProto(ir_version=IR_VERSION, graph=graph, opset_import=opsets).SerializeToString()
    return content
