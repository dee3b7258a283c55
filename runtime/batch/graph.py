"""A decoder's graph for several sequences in one step.

Bundles hold graphs of one sequence. Their operators take several as they are: only the shapes that the file states,
and those that heads are reshaped to, say that there is one. So the graph is read, and its first dimension named in the
place of counted, before onnxruntime sees it; the weights stay where they are.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator

from edge.errors import BundleError
from edge.runtime.protobuf import WireError, field, fields, first_text, integers, message, text

BATCH = "B"
# Numbers of fields in onnx/onnx.proto.
GRAPH = 7  # of a model
NODE, INITIALIZER, INPUT, OUTPUT, VALUE = 1, 5, 11, 12, 13  # of a graph
NODE_INPUT, NODE_TYPE, NODE_ATTRIBUTE, ATTRIBUTE_GRAPH = 1, 4, 5, 6
TENSOR_DIMS, TENSOR_INT64, TENSOR_NAME, TENSOR_RAW = 1, 7, 8, 9
VALUE_NAME, VALUE_TYPE, TYPE_TENSOR, TENSOR_SHAPE, SHAPE_DIM, DIM_VALUE, DIM_NAME = 1, 2, 1, 2, 1, 1, 2

LEAST = 3  # dimensions of a shape whose first one counts sequences
TOKENS = "tokens"  # an output that holds all sequences' tokens in one row


def several(model: bytes) -> bytes:
    """The ONNX file `model` of a decoder's step for as many sequences as it is given.

    Raises:
        BundleError: it is no ONNX file.
    """
    try:
        return message(
            *(
                field(number, _graph(value) if number == GRAPH and not isinstance(value, int) else value)
                for number, value in fields(memoryview(model))
            )
        )
    except (WireError, struct.error) as e:
        raise BundleError(f"A decoder's graph is damaged ({e}); export or copy the bundle again.") from None


def _graph(graph: memoryview, outside: Collection[str] = ()) -> bytes:
    """A graph, whose tensors in `outside` are what values are reshaped to."""
    shapes = {*outside, *_reshaped(graph)}
    parts = []
    for number, value in fields(graph):
        if number == VALUE:  # shapes of values in between, which onnxruntime finds out itself
            continue
        if isinstance(value, int) or number not in (NODE, INITIALIZER, INPUT, OUTPUT):
            parts.append(field(number, value))
        elif number == NODE:
            parts.append(field(number, _node(value, shapes)))
        elif number == INITIALIZER:
            reshapes = first_text(value, TENSOR_NAME) in shapes
            parts.append(field(number, _kept_first(value) if reshapes else value))
        else:
            parts.append(field(number, value if first_text(value, VALUE_NAME) == TOKENS else _value(value)))
    return message(*parts)


def _node(node: memoryview, shapes: Collection[str]) -> bytes:
    """A node, with the graphs of its branches where it has any."""
    if next(_branches(node), None) is None:
        return bytes(node)
    parts = []
    for number, value in fields(node):
        if isinstance(value, int) or number != NODE_ATTRIBUTE:
            parts.append(field(number, value))
            continue
        attribute = (
            field(n, _graph(v, shapes) if n == ATTRIBUTE_GRAPH and not isinstance(v, int) else v)
            for n, v in fields(value)
        )
        parts.append(field(number, message(*attribute)))
    return message(*parts)


def _branches(node: memoryview) -> Iterator[memoryview]:
    for number, value in fields(node):
        if number == NODE_ATTRIBUTE and not isinstance(value, int):
            yield from (v for n, v in fields(value) if n == ATTRIBUTE_GRAPH and not isinstance(v, int))


def _reshaped(graph: memoryview) -> Iterator[str]:
    """The names of what values are reshaped to, in branches too."""
    for number, value in fields(graph):
        if number == NODE and not isinstance(value, int):
            for branch in _branches(value):
                yield from _reshaped(branch)
            found = [(n, text(v)) for n, v in fields(value) if n in (NODE_INPUT, NODE_TYPE)]
            inputs = [name for n, name in found if n == NODE_INPUT]
            if (NODE_TYPE, "Reshape") in found and len(inputs) > 1:
                yield inputs[1]


def _kept_first(tensor: memoryview) -> bytes:
    """A shape [1, ...], with a first dimension that is taken over from what is reshaped: 0."""
    shape: list[int] = []
    for number, value in fields(tensor):
        if number == TENSOR_INT64:
            shape += integers(value)
        elif number == TENSOR_RAW and not isinstance(value, int):
            shape += struct.unpack(f"<{len(value) // 8}q", value)
    if len(shape) < LEAST or shape[0] != 1:
        return bytes(tensor)
    others = [field(n, v) for n, v in fields(tensor) if n not in (TENSOR_INT64, TENSOR_RAW)]
    signed = [n - (1 << 64) if n >= 1 << 63 else n for n in shape[1:]]  # a varint is two's complement
    return message(*others, field(TENSOR_RAW, struct.pack(f"<{len(shape)}q", 0, *signed)))


def _value(value: memoryview) -> bytes:
    """An input or output whose first dimension has a name where it was 1."""

    def inside(data: memoryview, path: tuple[int, ...]) -> bytes:
        parts, first = [], True
        for number, part in fields(data):
            if isinstance(part, int) or number != path[0]:
                parts.append(field(number, part))
            elif len(path) > 1:
                parts.append(field(number, inside(part, path[1:])))
            else:
                one = first and (DIM_VALUE, 1) in list(fields(part))
                parts.append(field(number, field(DIM_NAME, BATCH) if one else bytes(part)))
                first = False
        return message(*parts)

    if first_text(value, VALUE_NAME) == "logit_rows":
        return bytes(value)
    return inside(value, (VALUE_TYPE, TYPE_TENSOR, TENSOR_SHAPE, SHAPE_DIM))
