"""Checks of a bundle's graph: a bundle may come from a stranger, so nothing is done with a graph before it was checked
here.

Values are made once, before what reads them: whatever follows a graph's wires comes to an end. Tensors lie in files of
the bundle, within them. What only `edge` may write into a graph, and what no exporter writes, is refused.
"""

from __future__ import annotations

import math
import os
import stat
from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from google.protobuf.message import DecodeError

from edge.errors import BundleError
from edge.hub_links import is_within
from edge.runtime.kernels.graph_sizes import LARGEST as LARGEST_MADE
from edge.runtime.kernels.graph_sizes import SIZED, Sizes
from edge.runtime.kernels.library import DOMAIN, GGUF_DOMAIN, INT8_DOMAIN
from edge.runtime.kernels.nodes import LIKELIEST_COUNT, LIKELIEST_LOGARITHMS, LIKELIEST_TOKENS, THEIRS
from edge.runtime.kernels.rows import ROWS
from edge.runtime.onnx_proto import ModelProto

LARGEST = 16 << 20  # bytes of a file: 50 times those of 30 layers
MOST_NODES = 100_000  # operators of a file: 100 times those of 30 layers
DEEPEST = 4  # graphs inside of each other: what exporters write has 2
DOMAINS = ("", "ai.onnx", THEIRS, GGUF_DOMAIN)
EXTERNAL = 1  # TensorProto.DataLocation
TENSOR, GRAPH = 4, 5  # AttributeProto.AttributeType, by which onnxruntime reads an attribute
PLAIN = frozenset((1, 2, 3, TENSOR, 6, 7, 8))  # a number, a text or a tensor, or some numbers or texts
MATRIX, LENT = "matrix", "lent"  # attributes of a product: the number of its matrix, and what it finds it by
OURS = frozenset((MATRIX, LENT, ROWS))  # attributes that are made here alone
OUR_VALUES = frozenset((LIKELIEST_COUNT, LIKELIEST_LOGARITHMS, LIKELIEST_TOKENS))
# Bits of a number, by TensorProto.DataType.
BITS = {
    **{1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 14: 64, 15: 128, 16: 16},
    **{17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4},
}
MOST_SIZES = 8  # of a tensor
SHOWN = 80  # characters of a name in a sentence
WHERE = {"location", "offset", "length"}  # of a tensor's bytes


class _Refused(Exception):
    """The message says why."""


def read_graph(path: Path, folder: Path, external: Mapping[str, int] | None = None) -> Any:
    """Read and check the model in a graph's file. folder: of its weights. external: bytes of the files outside of it
    that tensors may lie in, by their locations.

    Raises:
        BundleError: it is no ONNX file, too large, or has what no graph of a bundle may have.
    """
    try:
        model = parse_graph(path)
        _Check(folder, external or {}).model(model)
    except OSError as e:
        raise BundleError(f"{path} cannot be read: {e.strerror or e}.") from None
    except DecodeError:
        raise BundleError(
            f"{path} could not be loaded by onnxruntime, for it is no ONNX file; export or copy the bundle again."
        ) from None
    except _Refused as e:
        raise BundleError(f"{path} is refused: {e}; export the model again, or do not use it.") from None
    return model


def parse_graph(path: Path) -> Any:
    """Read the model in a graph's file without a check. OSError where it is no file, or larger than any graph;
    DecodeError."""
    with open(path, "rb", opener=_without_waiting) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError("it is no plain file")
        if found.st_size > LARGEST:
            raise OSError(f"it has {found.st_size} bytes, and a graph at most {LARGEST}")
        return ModelProto.FromString(file.read(LARGEST))


def _without_waiting(path: str, flags: int) -> int:
    """Open a file, a pipe too, which nobody may ever write to."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


class _Check:
    """One look through a file's graphs. folder: of the files that tensors lie in."""

    def __init__(self, folder: Path, external: Mapping[str, int]) -> None:
        self._folder, self._sizes, self._nodes = folder, dict(external), 0

    def model(self, model: Any) -> None:
        """Check a model; _Refused where it is none that a bundle may have."""
        if model.functions:
            raise _Refused("it brings functions of its own")
        if model.training_info:
            raise _Refused("it brings a training of its own")
        if any(opset.domain in (DOMAIN, INT8_DOMAIN) for opset in model.opset_import):
            raise _Refused(f"it imports the operators {DOMAIN!r}, which edge alone puts into a graph")
        self._graph(model.graph, {""})

    def _graph(self, graph: Any, there: set[str], depth: int = 1, around: Sizes | None = None) -> None:
        """there: the values that are there around it, by their names, and the name of none."""
        sizes = Sizes(graph, around)
        if depth > DEEPEST:
            raise _Refused(f"it has graphs inside of each other, more than {DEEPEST} deep")
        if graph.sparse_initializer:
            raise _Refused("it has sparse tensors")
        self._nodes += len(graph.node)
        if self._nodes > MOST_NODES:
            raise _Refused(f"it has more than {MOST_NODES} operators")
        made = _all_new([value.name for value in graph.input], there)
        # An input may be among these: it then has a value where none is given.
        made |= _all_new([tensor.name for tensor in graph.initializer], there)
        there |= made
        for tensor in graph.initializer:
            if tensor.data_location or tensor.external_data:
                self._stored(tensor)
        for node in graph.node:
            if node.domain not in DOMAINS:
                raise _Refused(f"it has an operator {node.op_type[:SHOWN]!r} of the domain {node.domain[:SHOWN]!r}")
            if not there.issuperset(node.input):
                name = next(name for name in node.input if name not in there)
                raise _Refused(f"it reads {name[:SHOWN]!r} before anything makes it")
            if node.op_type in SIZED and sizes.asked(node) > LARGEST_MADE:
                raise _Refused(f"it asks the operator {node.op_type!r} for more than {LARGEST_MADE} numbers")
            self._attributes(node, there, depth, sizes)
            for name in node.output:
                if name:
                    if name in there:
                        raise _Refused(f"it makes {name[:SHOWN]!r} twice")
                    there.add(name)
                    made.add(name)
        if not OUR_VALUES.isdisjoint(made):
            raise _Refused(f"it has values that edge alone makes: {', '.join(sorted(OUR_VALUES & made))}")
        there -= made

    def _attributes(self, node: Any, there: set[str], depth: int, sizes: Sizes) -> None:
        chooses = node.op_type == "If"
        for attribute in node.attribute:
            kind = attribute.type
            if attribute.name in OURS:
                raise _Refused(f"it has the attribute {attribute.name[:SHOWN]!r}, which edge alone writes")
            if chooses and kind == GRAPH:
                self._graph(attribute.g, there, depth + 1, sizes)
            elif chooses or kind not in PLAIN:
                named = f"{node.op_type[:SHOWN]!r} with {attribute.name[:SHOWN]!r}"
                raise _Refused(f"it has an operator {named}, of a type it has not")
            elif kind == TENSOR and (attribute.t.data_location or attribute.t.external_data):
                raise _Refused(f"it has a constant in a file, in the operator {node.op_type[:SHOWN]!r}")

    def _stored(self, tensor: Any) -> None:
        """_Refused where a tensor is not one of a file of the folder as a whole."""
        where = {entry.key: entry.value for entry in tensor.external_data}
        if tensor.data_location != EXTERNAL or where.keys() != WHERE or len(tensor.external_data) != len(WHERE):
            raise _Refused(f"it does not say where {tensor.name[:SHOWN]!r} lies as a bundle does")
        if not all(isinstance(value, str) for value in where.values()):
            raise DecodeError  # texts that are not UTF-8 come as bytes
        start, length, location = _number(where["offset"]), _number(where["length"]), where["location"]
        size = self._sizes.get(location)
        if start + length > (self._size(location) if size is None else size):
            raise _Refused(f"it looks for {tensor.name[:SHOWN]!r} where {location[:SHOWN]!r} has no such bytes")
        numbers = tensor.dims[:MOST_SIZES]
        bits = math.prod(numbers) * BITS.get(tensor.data_type, 0)
        if length != -(-bits // 8) or len(tensor.dims) > MOST_SIZES or min(numbers, default=0) < 0:
            raise _Refused(f"it gives {tensor.name[:SHOWN]!r} {length} bytes, which do not fit its sizes {numbers}")

    def _size(self, location: str) -> int:
        """Bytes of a file of the folder."""
        path, pure = self._folder / location, PurePosixPath(location)
        plain = not pure.is_absolute() and ".." not in pure.parts and not {*"\\:\0"} & {*location}
        if not plain or not is_within(self._folder, location) or not path.is_file():
            raise _Refused(f"External data path {location[:SHOWN]!r} is no file of the bundle")
        self._sizes[location] = path.stat().st_size
        return self._sizes[location]


def _all_new(names: list[str], there: set[str]) -> set[str]:
    """The names, each of which is there once."""
    made = set(names)
    if len(made) < len(names) or not there.isdisjoint(made):
        name = next(name for name, count in Counter(names).items() if count > 1 or name in there)
        raise _Refused(f"it has {name[:SHOWN]!r} twice")
    return made


def _number(text: str) -> int:
    """A whole number in decimal digits."""
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise _Refused(f"it has weights at {text[:SHOWN]!r}, which is no number of bytes")
    return int(text)
