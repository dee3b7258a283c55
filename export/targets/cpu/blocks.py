"""Products of a graph that was traced, with their matrices rounded to integers in blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.convenience import replace_all_uses_with

from edge.bundle import Tensors
from edge.export.facts.tensors import QTensor
from edge.export.graph.weights import external, pack_blocks, view
from edge.export.quantize.rtn import round_to_nearest
from edge.export.targets.cpu.products import INT8_ACTIVATIONS

THEIRS = "com.microsoft"
LEAST = 32  # rows and columns of a matrix that is rounded
PRODUCTS = {("", "MatMul"), (THEIRS, "FusedMatMul"), ("", "Gemm")}
PLAIN = ("transA", "transBatchA", "transBatchB")  # attributes of products that may not be set
EIGHT = 8  # bits of the embedding and of the head


def round_products(graph: ir.Graph, writer: Tensors, vocab: int, bits: int, block_size: int) -> None:
    """Round the matrices of a graph's products to `bits`, and those with a row or column for each of `vocab` tokens to
    8. Each is written once, whoever reads it."""
    rounding = _Rounding(graph, writer, lambda shape: EIGHT if vocab in shape else bits, block_size)
    for node in list(graph):
        if (node.domain, node.op_type) in PRODUCTS:
            rounding.product(node)
        elif (node.domain, node.op_type) == ("", "Gather"):
            rounding.rows(node, vocab)


class _Rounding:
    def __init__(
        self, graph: ir.Graph, writer: Tensors, bits: Callable[[tuple[int, ...]], int], block_size: int
    ) -> None:
        self._graph, self._writer, self._bits, self._block = graph, writer, bits, block_size
        self._stored = dict[tuple[int, bool], tuple[int, tuple[int, int], ir.ExternalTensor, ir.ExternalTensor]]()
        graph.opset_imports[THEIRS] = 1

    def product(self, node: ir.Node) -> None:
        """Let a product with a constant matrix read it in blocks."""
        found = _matrix(node)
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if found is None or node.inputs[0] is None or (bias is not None and not _is_vector(bias)):
            return
        tensor, transposed = found
        bits, (rows, columns), weight, scales = self._round(tensor, transposed)
        sizes = {"K": columns, "N": rows, "bits": bits, "block_size": self._block}
        inputs = [node.inputs[0], self._value(weight), self._value(scales), None, None, bias]
        attributes = {**sizes, "accuracy_level": INT8_ACTIVATIONS}
        self._replace(node, ir.node("MatMulNBits", inputs[: 6 if bias is not None else 3], attributes, domain=THEIRS))

    def rows(self, node: ir.Node, vocab: int) -> None:
        """Let the rows of the embedding be read from its blocks."""
        table = node.inputs[0]
        if table is None or table.const_value is None or node.attributes.get_int("axis", 0) != 0:
            return
        shape = _shape(table.const_value)
        if len(shape) != 2 or shape[0] != vocab or shape[1] % self._block or not _is_float(table.const_value):
            return
        bits, (count, _), weight, scales = self._round(table.const_value, False)
        flat = view(weight, [count, weight.nbytes // count])
        attributes = {"gather_axis": 0, "quantize_axis": 1, "bits": bits, "block_size": self._block}
        inputs = [self._value(flat, ".rows"), node.inputs[1], self._value(scales)]
        self._replace(node, ir.node("GatherBlockQuantized", inputs, attributes, domain=THEIRS))

    def _round(
        self, tensor: ir.TensorProtocol, transposed: bool
    ) -> tuple[int, tuple[int, int], ir.ExternalTensor, ir.ExternalTensor]:
        key = id(tensor), transposed
        if key not in self._stored:
            matrix = tensor.numpy()
            matrix = np.ascontiguousarray(matrix.T if transposed else matrix, np.float32)
            rounded = round_to_nearest(matrix, self._bits(matrix.shape), self._block)
            name = f"{tensor.name}{'.t' if transposed else ''}"
            self._stored[key] = (rounded.bits, matrix.shape, *self._store(name, rounded))
        return self._stored[key]

    def _store(self, name: str, rounded: QTensor) -> tuple[ir.ExternalTensor, ir.ExternalTensor]:
        parts: list[tuple[str, NDArray[Any]]] = [("blocks", pack_blocks(rounded)), ("scales", rounded.scales)]
        made = []
        for part, values in parts:
            span = self._writer.add_tensor(f"{name}.{part}", values)
            dtype = ir.DataType.from_numpy(values.dtype)
            made.append(external(f"{name}.{part}", span.offset, span.length, dtype, values.shape))
        return made[0], made[1]

    def _value(self, tensor: Any, more: str = "") -> ir.Value:
        name = f"{tensor.name}{more}"
        if name not in self._graph.initializers:
            self._graph.register_initializer(ir.val(name, const_value=tensor, shape=tensor.shape, dtype=tensor.dtype))
        return self._graph.initializers[name]

    def _replace(self, node: ir.Node, new: ir.Node) -> None:
        old, made = node.outputs[0], new.outputs[0]
        made.name, made.type, made.shape = old.name, old.type, old.shape
        old.name = f"{old.name}.before"
        new.name = node.name
        self._graph.insert_before(node, new)
        replace_all_uses_with(old, made, replace_graph_outputs=True)
        self._graph.remove(node, safe=True)


def _matrix(node: ir.Node) -> tuple[ir.TensorProtocol, bool] | None:
    """The constant matrix [K, N] of a product, or [N, K], and whether it is the former."""
    attributes = node.attributes
    if any(attributes.get_int(name, 0) for name in PLAIN):
        return None
    if attributes.get_float("alpha", 1.0) != 1 or attributes.get_float("beta", 1.0) != 1 or node.inputs[1] is None:
        return None
    value, transposed = node.inputs[1], not attributes.get_int("transB", 0)
    maker = value.producer()
    if maker is not None and maker.op_type == "Transpose" and maker.inputs[0] is not None:
        if tuple(maker.attributes.get_ints("perm", (1, 0))) != (1, 0):
            return None
        value, transposed = maker.inputs[0], not transposed
    tensor = value.const_value
    if tensor is None or not _is_float(tensor) or len(_shape(tensor)) != 2 or min(_shape(tensor)) < LEAST:
        return None
    return tensor, transposed


def _is_vector(value: ir.Value) -> bool:
    return value.const_value is not None and len(_shape(value.const_value)) == 1


def _is_float(tensor: ir.TensorProtocol) -> bool:
    return tensor.dtype == ir.DataType.FLOAT


def _shape(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    return tuple(tensor.shape.numpy())
