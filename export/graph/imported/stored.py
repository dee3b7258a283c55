"""The tensors of another program's graph, moved into a bundle's `weights.bin`, and what they take."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from edge.bundle import Tensors
from edge.export.graph.tally import Tally
from edge.export.graph.weights import external
from edge.manifest import TensorGroup

LEAST = 256  # bytes from which on a tensor is no constant of the graph's file
EMBEDDING, LAYERS, HEAD, NORM = "embedding", "layers", "head", "norm"
BLOCKS = {"MatMulNBits": (1, 2, 3), "MatMulBnb4": (1, 2), "GatherBlockQuantized": (0, 2, 3)}  # weights first
LOOKS_UP = ("Gather", "GatherBlockQuantized")
METHOD = "onnx"


def store_tensors(graph: ir.Graph, writer: Tensors) -> list[TensorGroup]:
    """Write the tensors of a graph that nodes read, so that it has none in other files afterwards. Returns what they
    take, by group. Tensors that are in the bundle already stay there."""
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]
    for name, value in graph.initializers.items():
        tensor = _tensor(value)
        if not _is_stored(tensor):
            value.const_value = _moved(tensor, name, writer) if tensor.nbytes >= LEAST else _kept(tensor, name)
    tallies, counted = dict[str, Tally](), set[int]()
    for node in graph.all_nodes():
        if node.op_type in BLOCKS:
            values = [node.inputs[i] for i in BLOCKS[node.op_type] if i < len(node.inputs)]
            stored = [value for value in values if value is not None and value.const_value is not None]
            sizes = [size for value in stored if (size := _counted_once(value, counted)) is not None]
            if not sizes:
                continue
            bits, block = node.attributes.get_int("bits", 4), node.attributes.get_int("block_size", 0)
            count = _parameters(node, _tensor(stored[0]), bits)
            tallies.setdefault(_group(stored[0]), Tally()).add(count, sum(sizes), bits, block, METHOD)
    for value in graph.initializers.values():
        tensor = _tensor(value)
        if (size := _counted_once(value, counted)) is not None:
            count = max(1, math.prod(tensor.shape.numpy()))
            kind = tensor.dtype.name.lower()
            tallies.setdefault(_group(value), Tally()).add(count, size, tensor.dtype.bitwidth, 0, kind)
    return [tally.group(name) for name, tally in tallies.items()]


def _counted_once(value: ir.Value, counted: set[int]) -> int | None:
    """The bytes of a tensor of `weights.bin`; None where it is none, or its bytes were counted before."""
    tensor = _tensor(value)
    if not isinstance(tensor, ir.ExternalTensor) or tensor.offset is None or tensor.offset in counted:
        return None
    counted.add(tensor.offset)
    return tensor.nbytes


def _kept(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    """A small tensor, in the graph itself."""
    return ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=name)


def _is_stored(tensor: ir.TensorProtocol) -> bool:
    """True if a tensor is one of `weights.bin` already: it says no folder."""
    return isinstance(tensor, ir.ExternalTensor) and not str(tensor.base_dir)


def _moved(tensor: ir.TensorProtocol, name: str, writer: Tensors) -> ir.ExternalTensor:
    span = writer.add_tensor(name, np.frombuffer(tensor.tobytes(), np.uint8))
    return external(name, span.offset, span.length, tensor.dtype, tensor.shape.numpy())


def _tensor(value: ir.Value) -> ir.TensorProtocol:
    assert value.const_value is not None, "an initializer of a file that was read"
    return value.const_value


def _parameters(node: ir.Node, weights: ir.TensorProtocol, bits: int) -> int:
    rows, columns = node.attributes.get_int("N", 0), node.attributes.get_int("K", 0)
    if rows > 0 and columns > 0:
        return rows * columns
    return max(1, weights.nbytes * 8 // max(1, bits))


def _group(value: ir.Value) -> str:
    """The group of a tensor, by what reads it."""
    if value.shape is not None and len(value.shape) < 2:
        return NORM
    readers = list(_readers(value))
    if any(node.op_type in LOOKS_UP and place == 0 for node, place in readers):
        return EMBEDDING
    return HEAD if any(_makes_logits(node) for node, _ in readers) else LAYERS


def _readers(value: ir.Value) -> Iterator[tuple[ir.Node, int]]:
    for use in value.uses():
        if use.node.op_type in ("DequantizeLinear", "Transpose", "Cast"):
            yield from _readers(use.node.outputs[0])
        yield use.node, use.idx


def _makes_logits(node: ir.Node) -> bool:
    value: ir.Value | None = node.outputs[0]
    while value is not None and not value.is_graph_output():
        uses = list(value.uses())
        value = uses[0].node.outputs[0] if len(uses) == 1 and uses[0].node.op_type in ("Cast", "Add", "Mul") else None
    return value is not None and value.name == "logits"
