"""What a bundle's ONNX file says about its nodes: the profiler omits the weights that a kernel has packed.

Source: onnx/onnx.proto, which names the numbers of the fields.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from edge.errors import BundleError
from edge.runtime.profile.protobuf import Message, WireError, integers, parsed, text

# Bits of one value by TensorProto.DataType.
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
        (found,) = parsed(path.read_bytes())[7]
        graph = parsed(found)
        sizes = dict(map(_initializer, map(parsed, graph[5])))
        return {text(node[3]): _node(node, sizes) for node in map(parsed, graph[1])}
    except (WireError, ValueError) as e:
        raise BundleError(f"{path} is no ONNX file ({e}); export or copy the bundle again.") from None


def _initializer(tensor: Message) -> tuple[str, int]:
    """Name and bytes of a TensorProto."""
    count = math.prod(size for dims in tensor[1] for size in integers(dims))
    bits = BITS.get(tensor[2][-1], 0) if tensor[2] else 0
    return text(tensor[8]), -(-count * bits // 8)


def _node(node: Message, sizes: dict[str, int]) -> Node:
    names = [text([name]) for name in node[1]]
    weights = [sizes[name] for name in names if name in sizes]
    numbers = {text(each[1]): each[3][-1] for each in map(parsed, node[5]) if each[3]}
    return Node(text(node[4]), weights, {name: _signed(number) for name, number in numbers.items()})


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number  # two's complement
