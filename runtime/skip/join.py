"""Putting segments together: one graph of all groups of them, in which a step says which groups run.

Neighbours that always run together become one group. Each group that a step may leave out stands in an `If`, which
costs some 15 us for every layer in it: an input `run.G` says whether group G runs, and else the residual stream goes
past it, and its keys and values stay as they are. Each group holds rows of its own in the KV cache, so that the inputs
that count them are there once for each: `seqlens_k.G` and so on.

The files are messages of onnx/onnx.proto, whose fields are taken over as they are. A segment's values have the names
that they have in the whole graph, so that its neighbour's input is its own output.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge.bundle import WEIGHTS
from edge.errors import BundleError
from edge.runtime.protobuf import WireError, field, fields, first_text, message, text

# Numbers of fields in onnx/onnx.proto.
GRAPH = 7  # of a model
NODE, NAME, INITIALIZER, INPUT, OUTPUT = 1, 2, 5, 11, 12  # of a graph; what only helps people to read is left out
NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_TYPE, NODE_ATTRIBUTE = 1, 2, 3, 4, 5
ATTRIBUTE_NAME, ATTRIBUTE_GRAPH, ATTRIBUTE_TYPE, TYPE_IS_GRAPH = 1, 6, 20, 5
TENSOR_NAME, TENSOR_DATA = 8, 13
ENTRY_KEY, ENTRY_VALUE = 1, 2  # of what says where a tensor's data is
VALUE_NAME, VALUE_TYPE, TYPE_TENSOR, TENSOR_ELEMENT, TENSOR_SHAPE = 1, 2, 1, 1, 2
BOOL = 9

OWN = ("seqlens_k", "total_sequence_length", "key_positions", "attention_bias")
"""Inputs that each group has by itself, with its number behind a dot."""
RUN = "run"
"""What the input of a group that may be left out begins with."""
STREAM = "at."
"""What the names of the residual stream between groups begin with."""
PAST, PRESENT = "past.", "present."  # what the names of the KV cache's inputs and outputs begin with

Bytes = bytes | memoryview


def join(groups: Sequence[Sequence[Path]], optional: Collection[int], *, watched: bool = False) -> bytes:
    """One ONNX model of groups of segments' files, in the order they run; some that stood between them may be missing.

    optional: groups that a step may leave out; the first and the last one always run. watched: whether the residual
    stream that each group but the first reads is an output: `stream_name`.

    Raises:
        BundleError: a file cannot be read, or the segments do not fit together.
    """
    try:
        read = [[_Graph(path) for path in group] for group in groups]
        model = [field(number, value) for number, value in read[0][0].model]
        return message(*model, field(GRAPH, _guarded([_joined(graphs) for graphs in read], optional, watched)))
    except OSError as e:
        raise BundleError(f"{e.filename} cannot be read: {e.strerror}.") from None
    except WireError as e:
        raise BundleError(f"A segment under {groups[0][0].parent} is no ONNX file: {e}.") from None
    except (KeyError, ValueError):  # a value that one reads has another name, or none, where it is made
        raise BundleError(
            f"The segments under {groups[0][0].parent} do not fit together; export or copy the bundle again."
        ) from None


def stream_name(group: int, part: bool) -> str:
    """The name of what a group reads: x (False), or what is added to it (True)."""
    return f"{STREAM}{group}.{'added' if part else 'x'}"


def _is_stream(name: str) -> bool:
    """Whether an input or output of a segment is part of the residual stream."""
    return name.startswith("layer.")


def _stream_part(name: str) -> bool:
    """Which part of the stream: x (False), or what is added to it (True)."""
    return name.endswith(".added")


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
        for tensor in self.initializers.values():
            _check_place(path, tensor)

    def _read(self, graph: memoryview) -> None:
        for number, value in fields(graph):
            if isinstance(value, int):
                continue
            if number == NODE:
                self.nodes.append((first_text(value, NODE_OUTPUT), value))
            elif number == INITIALIZER:
                self.initializers[first_text(value, TENSOR_NAME)] = value
            elif number == INPUT:
                self.inputs[first_text(value, VALUE_NAME)] = value
            elif number == OUTPUT:
                self.outputs[first_text(value, VALUE_NAME)] = value


def _check_place(path: Path, tensor: memoryview) -> None:
    """BundleError where a tensor's data is in another file than the bundle's: onnxruntime refuses paths out of the
    bundle for a graph that is a file, and not always for the bytes of one."""
    for number, entry in fields(tensor):
        if number == TENSOR_DATA and not isinstance(entry, int) and first_text(entry, ENTRY_KEY) == "location":
            place = first_text(entry, ENTRY_VALUE)
            if posixpath.normpath(place) != WEIGHTS:
                raise BundleError(f"{path} reads weights from {place!r}; export or copy the bundle again.")


@dataclass
class _Group:
    """Segments that run together: what stands in their graph, by name, and the parts of the stream that the first one
    reads and the last one writes."""

    nodes: dict[str, Bytes]  # each by the name of its first output
    initializers: dict[str, memoryview]
    inputs: dict[str, memoryview]  # without the stream
    outputs: dict[str, memoryview]
    reads: list[str]
    writes: list[str]

    @property
    def caches(self) -> list[str]:
        """The outputs that are no part of the stream: the KV cache's, and what the last group says."""
        return [name for name in self.outputs if not _is_stream(name)]


def _joined(graphs: Sequence[_Graph]) -> _Group:
    nodes: dict[str, Bytes] = {}  # segments compute some small things each by itself: these are left once
    initializers: dict[str, memoryview] = {}
    inputs: dict[str, memoryview] = {}
    outputs: dict[str, memoryview] = {}
    before: _Graph | None = None
    for graph in graphs:
        if before is not None:
            for made, read in zip(_stream(before.outputs), _stream(graph.inputs), strict=True):
                if made != read:  # what stood between them is left out
                    nodes[read] = _node("Identity", [made], [read])
        nodes |= {name: node for name, node in graph.nodes if name not in nodes}
        initializers |= graph.initializers
        inputs |= {name: value for name, value in graph.inputs.items() if not _is_stream(name)}
        outputs |= {name: value for name, value in graph.outputs.items() if graph is graphs[-1] or not _is_stream(name)}
        before = graph
    return _Group(nodes, initializers, inputs, outputs, _stream(graphs[0].inputs), _stream(outputs))


def _guarded(groups: Sequence[_Group], optional: Collection[int], watched: bool) -> bytes:
    """The graph of all groups, those that are `optional` behind a condition."""
    nodes: dict[str, Bytes] = {}
    initializers: dict[str, Bytes] = {}
    inputs: dict[str, Bytes] = {}
    outputs: dict[str, Bytes] = {}
    stream: list[str] = []
    for number, group in enumerate(groups):
        always = number not in optional or number in (0, len(groups) - 1)
        names = {name: f"{name}.{number}" for name in group.inputs if name in OWN}
        names |= dict(zip(group.reads, stream, strict=True))
        stream = [stream_name(number + 1, _stream_part(name)) for name in group.writes]
        results = dict(zip(group.writes, stream, strict=True)) | {name: name for name in group.caches}
        inputs |= {names.get(name, name): _value(value, names) for name, value in group.inputs.items()}
        shown = {name: result for name, result in results.items() if watched or name not in group.writes}
        outputs |= {result: _value(group.outputs[name], results) for name, result in shown.items()}
        # Within a branch a weight would stay in memory beside its packed copy until all are packed.
        initializers |= group.initializers
        if always:
            nodes |= _renamed_nodes(group, names | results, nodes, number)
            continue
        runs = f"{RUN}.{number}"
        inputs[runs] = _flag(runs)
        branch = _renamed_nodes(group, names, nodes, number)
        nodes[runs] = _if(runs, group, names, results, [*branch.values()])
    parts = (NODE, nodes), (INITIALIZER, initializers), (INPUT, inputs), (OUTPUT, outputs)
    return message(field(NAME, "segments"), *(field(n, v) for n, values in parts for v in values.values()))


def _renamed_nodes(group: _Group, names: dict[str, str], there: Mapping[str, Bytes], number: int) -> dict[str, Bytes]:
    """A group's nodes but those that are `there`, with other `names` for what they read; what they make gets the
    group's number behind it, in the graph and in `names`, so that no name is there twice."""
    found: dict[str, Bytes] = {}
    for first, node in group.nodes.items():
        if there.get(first) == _renamed(node, names):
            continue
        if number:
            made = (text(value) for n, value in fields(memoryview(node)) if n == NODE_OUTPUT)
            names |= {name: f"{name}.{number}" for name in made if name and name not in names}
        found[names.get(first, first)] = _renamed(node, names, f".{number}" if number else "")
    return found


def _if(
    runs: str,
    group: _Group,
    names: Mapping[str, str],
    results: Mapping[str, str],
    nodes: Sequence[Bytes],
) -> bytes:
    """The node that makes the `results` of a group: by its nodes, or by handing on what the group would have read."""
    sources = dict(zip(group.writes, group.reads, strict=True))
    sources |= {name: PAST + name.removeprefix(PRESENT) for name in group.caches}
    past = {name: f"{name}.past" for name in results}
    then = _branch(nodes, [_loose(group.outputs[name], names[name]) for name in results])
    copies = [_node("Identity", [names.get(source, source)], [past[name]]) for name, source in sources.items()]
    other = _branch(copies, [_loose(group.outputs[name], past[name]) for name in results])
    branches = [
        message(
            field(ATTRIBUTE_NAME, name),
            field(ATTRIBUTE_GRAPH, message(field(NAME, f"{runs}.{name}"), graph)),
            field(ATTRIBUTE_TYPE, TYPE_IS_GRAPH),
        )
        for name, graph in (("then_branch", then), ("else_branch", other))
    ]
    return message(_node("If", [runs], results.values()), *(field(NODE_ATTRIBUTE, branch) for branch in branches))


def _branch(nodes: Sequence[Bytes], outputs: Sequence[bytes]) -> bytes:
    return message(*(field(NODE, node) for node in nodes), *(field(OUTPUT, value) for value in outputs))


def _node(kind: str, inputs: Iterable[str], outputs: Iterable[str]) -> bytes:
    read, made = (field(NODE_INPUT, name) for name in inputs), (field(NODE_OUTPUT, name) for name in outputs)
    return message(*read, *made, field(NODE_TYPE, kind))


def _renamed(node: Bytes, names: Mapping[str, str], behind: str = "") -> bytes:
    """A node with other names for what it reads and makes, and with something behind its own."""
    parts = []
    for number, value in fields(memoryview(node)):
        if number in (NODE_INPUT, NODE_OUTPUT):
            name = text(value)
            parts.append(field(number, names.get(name, name)))
        elif number == NODE_NAME:
            parts.append(field(number, text(value) + behind))
        else:
            parts.append(field(number, value))
    return message(*parts)


def _value(value: memoryview, names: Mapping[str, str]) -> bytes:
    """An input or output with another name."""
    name = first_text(value, VALUE_NAME)
    others = (field(number, part) for number, part in fields(value) if number != VALUE_NAME)
    return message(field(VALUE_NAME, names.get(name, name)), *others)


def _loose(value: memoryview, name: str) -> bytes:
    """An output of a branch: its name and the type of its numbers, whatever its shape."""
    tensor = _message(_message(value, VALUE_TYPE), TYPE_TENSOR)
    element = next((part for number, part in fields(tensor) if number == TENSOR_ELEMENT), 0)
    return _typed(name, field(TENSOR_ELEMENT, element))


def _message(data: memoryview, number: int) -> memoryview:
    """The first field of this number, which is a message."""
    for found, value in fields(data):
        if found == number and not isinstance(value, int):
            return value
    raise WireError(f"an output has no field {number}")


def _flag(name: str) -> bytes:
    """The input, a scalar, that says whether a group runs."""
    return _typed(name, message(field(TENSOR_ELEMENT, BOOL), field(TENSOR_SHAPE, b"")))


def _typed(name: str, tensor: bytes) -> bytes:
    return message(field(VALUE_NAME, name), field(VALUE_TYPE, field(TYPE_TENSOR, tensor)))


def _stream(names: Iterable[str]) -> list[str]:
    """The parts of the stream among inputs or outputs: x, and what is added to it where they stand apart."""
    return sorted(filter(_is_stream, names), key=_stream_part)
