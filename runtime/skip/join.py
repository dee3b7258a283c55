"""Putting segments together: neighbours that always run together become one graph, which costs one session less each.

The files are messages of onnx/onnx.proto, whose fields are taken over as they are. A segment's values have the names
that they have in the whole graph, so that its neighbour's input is its own output.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edge.errors import BundleError
from edge.runtime.protobuf import WireError, field, fields, message, text

GRAPH = 7  # of a model
NODE, NAME, INITIALIZER, INPUT, OUTPUT = 1, 2, 5, 11, 12  # of a graph; what only helps people to read is left out
NODE_INPUT, NODE_OUTPUT, NODE_TYPE = 1, 2, 4
VALUE_NAME, TENSOR_NAME = 1, 8
CACHE = "present."  # what the names of a segment's outputs begin with that are no part of the stream


def join(paths: Sequence[Path]) -> bytes:
    """One ONNX model of segments' files, in the order they run; some that stood between them may be missing.

    Raises:
        BundleError: a file cannot be read.
    """
    try:
        return _joined([_Graph(path) for path in paths])
    except OSError as e:
        raise BundleError(f"{e.filename} cannot be read: {e.strerror}.") from None
    except WireError as e:
        raise BundleError(f"A segment under {paths[0].parent} is no ONNX file: {e}.") from None


class _Graph:
    """The fields of one segment."""

    def __init__(self, path: Path) -> None:
        self.model: list[tuple[int, int | memoryview]] = []  # fields but the graph
        self.nodes: list[tuple[str, memoryview]] = []  # each by the name of its first output
        self.initializers: dict[str, memoryview] = {}
        self.inputs: dict[str, memoryview] = {}
        self.outputs: dict[str, memoryview] = {}
        for number, value in fields(memoryview(path.read_bytes())):
            if number != GRAPH:
                self.model.append((number, value))
            elif not isinstance(value, int):
                self._read(value)

    def _read(self, graph: memoryview) -> None:
        for number, value in fields(graph):
            if isinstance(value, int):
                continue
            if number == NODE:
                self.nodes.append((_first(value, NODE_OUTPUT), value))
            elif number == INITIALIZER:
                self.initializers[_first(value, TENSOR_NAME)] = value
            elif number == INPUT:
                self.inputs[_first(value, VALUE_NAME)] = value
            elif number == OUTPUT:
                self.outputs[_first(value, VALUE_NAME)] = value

    @property
    def stream(self) -> list[str]:
        """The outputs that the next segment reads: x, and what is added to it where they stand apart."""
        return sorted((name for name in self.outputs if is_stream(name)), key=stream_part)

    @property
    def reads(self) -> list[str]:
        """The inputs that a segment before it made."""
        return sorted((name for name in self.inputs if is_stream(name)), key=stream_part)


def is_stream(name: str) -> bool:
    """Whether an input or output of a segment is part of the residual stream."""
    return name.startswith("layer.")


def stream_part(name: str) -> bool:
    """Which part of the stream: x (False), or what is added to it (True)."""
    return name.endswith(".added")


def _joined(graphs: Sequence[_Graph]) -> bytes:
    nodes: dict[str, bytes | memoryview] = {}  # segments compute some small things each by itself: these are left once
    initializers: dict[str, memoryview] = {}
    inputs: dict[str, memoryview] = {}
    outputs: dict[str, memoryview] = {}
    before: _Graph | None = None
    for graph in graphs:
        if before is not None:
            for made, read in zip(before.stream, graph.reads, strict=True):
                if made != read:  # what stood between them is left out
                    names = field(NODE_INPUT, made), field(NODE_OUTPUT, read)
                    nodes[read] = message(*names, field(NODE_TYPE, "Identity"))
        nodes |= {name: node for name, node in graph.nodes if name not in nodes}
        initializers |= graph.initializers
        inputs |= {name: value for name, value in graph.inputs.items() if before is None or not is_stream(name)}
        outputs |= {name: value for name, value in graph.outputs.items() if graph is graphs[-1] or not is_stream(name)}
        before = graph
    parts = ((NODE, nodes), (INITIALIZER, initializers), (INPUT, inputs), (OUTPUT, outputs))
    graph_fields = [field(number, bytes(value)) for number, values in parts for value in values.values()]
    model = [field(number, value if isinstance(value, int) else bytes(value)) for number, value in graphs[0].model]
    return message(*model, field(GRAPH, message(field(NAME, "segments"), *graph_fields)))


def _first(data: memoryview, wanted: int) -> str:
    """The text of the first field of this number."""
    for number, value in fields(data):
        if number == wanted:
            return text(value)
    return ""
