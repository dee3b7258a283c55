"""Integers for a float graph: what each value is rounded to stands around it, as QuantizeLinear and DequantizeLinear.

Activations have 16 bits and one scale each, weights 8 bits and a scale for each output, or 4 bits in blocks. Keys and
values have 16 bits with a sign, and the host keeps them as these integers. Values that are only moved share the scale
of their source.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from edge.errors import ExportError
from edge.export.targets.npu.blocks import BLOCK, Blocks

# What the names of keys and values begin with: of those in the cache, those of the step, and an encoder's.
PAST, NEW, CROSS = "past.", "new.", "cross."
Range = tuple[float, float]  # the smallest and the largest value that was seen
MOVES = {"Reshape", "Transpose", "Split", "Concat", "Gather", "Slice"}
COMPUTES = {"Add", "Sub", "Mul", "Div", "MatMul", "Gemm", "Conv", "Softmax", "Sigmoid", "Gelu", "Relu", "Tanh",
            "RMSNormalization", "LayerNormalization"}  # fmt: skip
WEIGHTED = {"Gemm", "Conv"}  # their second input has weights, and a third one is a bias
UNIT = {"Softmax", "Sigmoid"}  # make values between 0 and 1
KV_ROOM = 1.1  # by which keys and values may be larger than those that were seen
SMALLEST = 1e-6  # of a range
FLOAT = ir.DataType.FLOAT

Uses = Sequence[tuple[ir.Node, int]]  # nodes, and which of their inputs


@dataclass(frozen=True)
class Grid:
    """The grid that values are rounded to: ``scale * (q - zero)``."""

    scale: NDArray[np.float32]
    zero: NDArray[np.int8] | NDArray[np.uint8] | NDArray[np.uint16] | NDArray[np.int16] | NDArray[np.int32]


def activation_grid(found: Range) -> Grid:
    """16 bits over a range, 0 included."""
    low, high = min(found[0], 0.0), max(found[1], 0.0)
    scale = max(high - low, SMALLEST) / 65535
    return Grid(np.float32(scale), np.uint16(np.clip(round(-low / scale), 0, 65535)))  # type: ignore[arg-type]


def kv_grid(found: Range) -> Grid:
    """16 bits, symmetric: keys and values are second operands, of which the NPU takes 8 bits of any other type."""
    largest = max(abs(found[0]), abs(found[1]), SMALLEST) * KV_ROOM
    return Grid(np.float32(largest / 32767), np.int16(0))  # type: ignore[arg-type]


def check_operators(graph: ir.Graph) -> None:
    """Raise ExportError if the NPU does not know an operator of the graph."""
    others = sorted({node.op_type for node in graph} - MOVES - COMPUTES)
    if others:
        raise ExportError(f"The model's graph has operators that edge does not write for NPUs: {', '.join(others)}.")


def name_of(value: ir.Value) -> str:
    """The name, which every value of these graphs has."""
    assert value.name is not None
    return value.name


def array_of(value: ir.Value) -> NDArray[Any]:
    """A constant's numbers."""
    assert value.const_value is not None
    array: NDArray[Any] = value.const_value.numpy()
    return array


def activations(graph: ir.Graph) -> list[ir.Value]:
    """The float values that a step computes or is given, in order."""
    given = [value for value in graph.inputs if value.dtype == FLOAT]
    return [*given, *(value for node in graph for value in node.outputs)]


def shares_with(value: ir.Value) -> list[ir.Value]:
    """The values whose scale a value shares: those that it is made of by moving them, and the two products whose sum it
    is. These are what attention takes from the cache and from the step itself, and each may be all of the sum, however
    it is shared out over the text that ranges are measured on."""
    node = value.producer()
    if node is None:
        return []
    sources = [source for source in node.inputs if source is not None and source.const_value is None]
    if node.op_type in MOVES:
        return sources if node.op_type == "Concat" else sources[:1]
    makers = [source.producer() for source in sources]
    return sources if node.op_type == "Add" and all(m is not None and m.op_type == "MatMul" for m in makers) else []


def quantize(model: ir.Model, ranges: Mapping[str, Range], blocks: Mapping[str, Blocks]) -> ir.Model:
    """The model with integers instead of floats. `model` itself is changed.

    ranges: of every activation by name. Keys and values come in and go out as integers, all else as floats. blocks:
    the matrices that have 4 bits, by name; others have 8.
    """
    return _Quantizer(model, ranges, blocks).run()


class _Quantizer:
    def __init__(self, model: ir.Model, ranges: Mapping[str, Range], blocks: Mapping[str, Blocks]) -> None:
        self.model, self.graph, self.blocks = model, model.graph, blocks
        self.values = activations(self.graph)
        self.grids = self._grids(ranges)
        self.signed = self._signed(ranges)
        self.constants: dict[str, ir.Value] = {}
        self.matrices: dict[str, tuple[ir.Value, Grid]] = {}  # by the names of floats and of integers

    def run(self) -> ir.Model:
        for node in list(self.graph):
            self._weights(node)
        for value in self.values:
            self._activation(value)
        self.graph.sort()
        for name in [name for name, value in self.graph.initializers.items() if not value.uses()]:
            del self.graph.initializers[name]
        return self.model

    def _grids(self, ranges: Mapping[str, Range]) -> dict[str, Grid]:
        """By value: one for all that share it, over all their ranges."""
        root: dict[str, str] = {}

        def find(name: str) -> str:
            while root.setdefault(name, name) != name:
                name = root[name]
            return name

        for value in self.values:
            for source in shares_with(value):
                root[find(name_of(value))] = find(name_of(source))
        members: defaultdict[str, list[ir.Value]] = defaultdict(list)
        for value in self.values:
            members[find(name_of(value))].append(value)
        grids: dict[str, Grid] = {}
        for group in members.values():
            makers = (value.producer() for value in group)
            unit = any(maker is not None and maker.op_type in UNIT for maker in makers)
            grid = activation_grid((0.0, 1.0) if unit else _joined([ranges[name_of(value)] for value in group]))
            grids |= {name_of(value): grid for value in group}
        return grids

    def _signed(self, ranges: Mapping[str, Range]) -> dict[str, Grid]:
        """The grids of keys and values. What a cache has and what is added to it share one. What only moves them takes
        theirs over."""
        signed: dict[str, Grid] = {}
        for value in self.values:
            name = name_of(value)
            if name.startswith((PAST, NEW)):
                part = name.partition(".")[2]
                signed[name] = kv_grid(_joined([ranges[f"{PAST}{part}"], ranges[f"{NEW}{part}"]]))
            elif name.startswith(CROSS):
                signed[name] = kv_grid(ranges[name])
        for node in self.graph:
            second = node.inputs[1] if node.op_type == "MatMul" else None
            move = None if second is None else second.producer()
            if move is None or move.op_type != "Transpose" or move.inputs[0] is None:
                continue
            source = move.inputs[0]
            signed.setdefault(name_of(source), kv_grid(ranges[name_of(source)]))
            self.grids[name_of(second)] = signed[name_of(source)]  # type: ignore[arg-type]
        return signed

    def _activation(self, value: ir.Value) -> None:
        name, uses = name_of(value), list(value.uses())
        signed = self.signed.get(name)
        if signed is not None and value.is_graph_input():  # integers come in
            value.type = ir.TensorType(ir.DataType.from_numpy(signed.zero.dtype))
            self._use(uses, self._dequantized(value, signed, name))
            return
        plain = self._dequantized(self._quantized(value, self.grids[name], name), self.grids[name], name)
        if signed is not None:
            stored = self._quantized(plain, signed, f"{name}.stored")
            self._use(uses, self._dequantized(stored, signed, f"{name}.stored"))
            if value.is_graph_output():  # and go out
                value.name = f"{name}.float"
                stored.name, stored.shape = name, value.shape
                self._output(value, stored)
            return
        self._use(uses, plain)
        if value.is_graph_output():
            value.name = f"{name}.float"
            plain.name, plain.shape, plain.type = name, value.shape, ir.TensorType(FLOAT)
            self._output(value, plain)

    def _output(self, old: ir.Value, new: ir.Value) -> None:
        self.graph.outputs[list(self.graph.outputs).index(old)] = new

    def _weights(self, node: ir.Node) -> None:
        weight = name_of(node.inputs[1]) if node.op_type == "Gemm" else ""  # type: ignore[arg-type]
        if weight in self.blocks:
            self._product(node, weight, self.blocks[weight])
            return
        for i, value in enumerate(node.inputs):
            if value is None or value.const_value is None or value.const_value.dtype != FLOAT:
                continue
            if node.op_type in WEIGHTED and i == 1:
                made = self._matrix(value)[0]
            elif node.op_type in WEIGHTED:
                read, matrix = node.inputs[0], node.inputs[1]  # which is dequantized by now
                assert read is not None and matrix is not None
                scale = self.grids[name_of(read)].scale * self._matrix(matrix)[1].scale
                made = self._integers(value, Grid(scale, np.zeros(scale.shape, np.int32)), f".{read.name}")
            else:
                array = array_of(value)
                made = self._integers(value, activation_grid((float(array.min()), float(array.max()))))
            node.replace_input_with(i, made)

    def _product(self, node: ir.Node, matrix: str, blocks: Blocks) -> None:
        """Quantize a product whose weight is in blocks. It becomes a MatMul, because the simulator computes a Gemm with
        blocks wrongly."""
        name = f"{matrix}.int4"
        if name not in self.constants:
            grid = Grid(blocks.scale, np.zeros(blocks.scale.shape, np.uint8))
            scales = self._dequantized(self._constant(f"{name}.steps", blocks.steps), grid, f"{name}.steps", axis=1)
            zero = self._constant(f"{name}.zero", np.zeros(blocks.steps.shape, blocks.q.dtype))
            inputs = [self._constant(name, blocks.q), scales, zero]
            self.constants[name] = self._append("DequantizeLinear", inputs, name, axis=0, block_size=BLOCK)
        node.op_type = "MatMul"
        node.attributes.clear()
        node.replace_input_with(1, self.constants[name])

    def _matrix(self, value: ir.Value) -> tuple[ir.Value, Grid]:
        """A weight [N, ...] in 8 bits, with a scale for each of N."""
        name = name_of(value)
        if name not in self.matrices:
            weight = array_of(value)
            largest = np.abs(weight).reshape(len(weight), -1).max(axis=1)
            scale = (np.maximum(largest, SMALLEST) / 127).astype(np.float32)
            grid = Grid(scale, np.zeros(scale.shape, np.int8))
            made = self._integers(value, grid)
            self.matrices[name] = self.matrices[name_of(made)] = made, grid
        return self.matrices[name]

    def _integers(self, value: ir.Value, grid: Grid, reader: str = "") -> ir.Value:
        """A constant as integers, dequantized in the graph. reader: ends its name, where its scale depends on that."""
        name = f"{value.name}{reader}.{grid.zero.dtype}"
        if name not in self.constants:
            info, axis = np.iinfo(grid.zero.dtype), grid.scale.ndim
            array = array_of(value)
            scale = grid.scale if array.ndim < 2 or not axis else grid.scale.reshape(-1, *[1] * (array.ndim - 1))
            zero = grid.zero.astype(np.float64) if array.ndim < 2 or not axis else 0.0
            q = np.clip(np.rint(array / scale) + zero, info.min, info.max).astype(grid.zero.dtype)
            self.constants[name] = self._dequantized(self._constant(name, q), grid, name)
        return self.constants[name]

    def _constant(self, name: str, array: NDArray[np.generic]) -> ir.Value:
        found = self.graph.initializers.get(name)
        if found is None:
            found = ir.val(name, const_value=ir.Tensor(np.asarray(array), name=name))
            self.graph.register_initializer(found)
        return found

    def _quantized(self, value: ir.Value, grid: Grid, name: str) -> ir.Value:
        made = self._node("QuantizeLinear", value, grid, name)
        made.type = ir.TensorType(ir.DataType.from_numpy(grid.zero.dtype))
        return made

    def _dequantized(self, value: ir.Value, grid: Grid, name: str, axis: int = 0) -> ir.Value:
        return self._node("DequantizeLinear", value, grid, name, axis)

    def _node(self, kind: str, value: ir.Value, grid: Grid, name: str, axis: int = 0) -> ir.Value:
        scale, zero = self._constant(f"{name}.scale", grid.scale), self._constant(f"{name}.zero", grid.zero)
        return self._append(kind, [value, scale, zero], name, **({"axis": axis} if grid.scale.ndim else {}))

    def _append(self, kind: str, inputs: list[ir.Value], name: str, **attributes: int) -> ir.Value:
        made = [ir.AttrInt64(key, number) for key, number in attributes.items()]
        node = ir.Node("", kind, inputs, made, name=f"{name}.{kind}")
        node.outputs[0].name = f"{name}.{'q' if kind == 'QuantizeLinear' else 'dq'}"
        self.graph.append(node)
        return node.outputs[0]

    @staticmethod
    def _use(uses: Uses, value: ir.Value) -> None:
        for node, index in uses:
            node.replace_input_with(index, value)


def _joined(ranges: list[Range]) -> Range:
    return min(low for low, _ in ranges), max(high for _, high in ranges)
