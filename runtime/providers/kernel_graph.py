"""A graph whose products, attention and norms are those of our kernels: the same but for the operators' domain, and for
weights that lie in another layout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from edge.bundle import WEIGHTS, Bundle
from edge.manifest import KV8, KVLayer
from edge.runtime.providers.graph_wires import INT, graphs, numbers, read_by, set_inputs
from edge.runtime.providers.kernel_chains import take_chains
from edge.runtime.providers.kernel_nodes import (
    PRODUCT,
    THEIRS,
    add_likeliest,
    is_independent,
    take_attention,
    take_neighbours,
    take_norms,
    take_position_bias,
    takes_bytes,
)
from edge.runtime.providers.kernel_rows import ROWS, take_rows
from edge.runtime.providers.kernels import DOMAIN, INT8_DOMAIN, Kernels, find_kernels, without_kernels
from edge.runtime.providers.onnx_proto import ModelProto
from edge.runtime.providers.packed import Matrix, PackedWeights, packed_weights

FLOAT, UINT8, INT8 = 1, 2, 3  # TensorProto.DataType
EXTERNAL = 1  # TensorProto.DataLocation
INT8_ACTIVATIONS = 4  # accuracy_level: activations are rounded to 8 bits
BLOCKS = (32, 64, 128, 256)
B, SCALES, ZERO_POINTS, G_IDX = 1, 2, 3, 4  # inputs of MatMulNBits
MATRIX, LENT = "matrix", "lent"  # attributes of a product: the number of its matrix, and what it finds it by


@dataclass(frozen=True)
class KernelGraph:
    """An ONNX model, and the packed matrices of its products, mapped into memory, which the products number.

    independent: whether a row of its results is the same, bit for bit, whatever stands next to it in a step. inside:
    the names of the bundle's nodes in a node that is several of them, by its own name.
    """

    model: Any
    matrices: list[NDArray[np.uint8]]
    independent: bool
    inside: dict[str, list[str]]

    @contextmanager
    def lent(self, kernels: Kernels) -> Iterator[bytes]:
        """The model as onnxruntime loads it while this is open; sessions need the matrices for as long as they live."""
        with ExitStack() as stack:
            for node in (node for graph in graphs(self.model.graph) for node in graph.node if node.domain == DOMAIN):
                for attribute in [each for each in node.attribute if each.name.endswith(MATRIX)]:  # of all in a chain
                    lent = stack.enter_context(kernels.lend(self.matrices[attribute.i]))
                    node.attribute.add(name=attribute.name.removesuffix(MATRIX) + LENT, i=lent, type=INT)
            yield self.model.SerializeToString()


def kernel_graph(bundle: Bundle, path: Path, kernels: Kernels, *, apart: bool = False) -> KernelGraph | None:
    """The graph of a file of the bundle for these kernels; None where there is nothing in it that they compute, or
    their weights cannot be kept, which a warning says. apart: leave operators nodes of their own, which onnxruntime's
    profiler can tell apart."""
    if all(file.path != WEIGHTS for file in bundle.manifest.files):
        return None  # it is being written, and nothing says yet which weights these are
    try:
        model = ModelProto.FromString(path.read_bytes())
        if any(node.domain in (DOMAIN, INT8_DOMAIN) for graph in graphs(model.graph) for node in graph.node):
            return None  # nodes of ours are made here alone: these would read what was lent to others
        matrices = _find(model.graph)
        if not matrices:
            return None
        packed = packed_weights(
            bundle, kernels, matrices.values(), lambda: (_of_all_graphs(bundle) | matrices).values()
        )
        read = _take(model.graph, matrices, packed)
        stored = {tensor.name: tensor for tensor in model.graph.initializer}
        for graph in graphs(model.graph):
            take_attention(graph, bundle.manifest.kv.layers)
            take_neighbours(graph, stored)
            take_norms(graph, stored)
            take_position_bias(graph, stored)
        add_likeliest(model.graph)
        inside = {} if apart else take_chains(model.graph)
    except OSError as e:
        without_kernels(f"the weights cannot be kept in the layout of edge_kernels ({e})")
        return None
    except (DecodeError, ValueError, TypeError, KeyError):  # TypeError: of a text that is no UTF-8
        return None  # onnxruntime will say what is wrong with it
    for domain in (DOMAIN, INT8_DOMAIN):
        model.opset_import.add(domain=domain, version=1)
    return KernelGraph(model, read, all(is_independent(node) for node in model.graph.node), inside)


def attends_to_bytes(bundle: Bundle) -> bool:
    """Whether these kernels run here, and attend to a KV cache in int8 in this bundle's graph over one."""
    path = next((bundle.path(graph.path) for graph in bundle.manifest.graphs if graph.role == KV8), None)
    if path is None or find_kernels() is None:
        return False
    try:
        return _attends_to_bytes(path, path.stat().st_mtime_ns, tuple(bundle.manifest.kv.layers))
    except (OSError, DecodeError, ValueError, TypeError, KeyError):
        return False  # whoever opens it says why


@lru_cache(8)
def _attends_to_bytes(path: Path, changed: int, layers: tuple[KVLayer, ...]) -> bool:
    """The same of a graph's file, which is read once while nobody changes it: a start asks several times."""
    graph = ModelProto.FromString(path.read_bytes()).graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    ours = any(_matrix(node, stored) for node in graph.node)  # else onnxruntime's kernels run the whole graph
    return ours and takes_bytes(graph, layers)


def _of_all_graphs(bundle: Bundle) -> dict[str, Matrix]:
    found: dict[str, Matrix] = {}
    for graph in bundle.manifest.graphs:
        found |= _find(ModelProto.FromString(bundle.path(graph.path).read_bytes()).graph)
    return found


def _find(graph: Any) -> dict[str, Matrix]:
    """The matrices of products that our kernels compute, by the names of their weights. int8 products are changed to
    products of ours."""
    take_rows(graph)
    stored = {tensor.name: tensor for tensor in graph.initializer}
    found = {}
    for each in graphs(graph):
        for node in each.node:
            matrix = _matrix(node, stored)
            if matrix is not None:
                found[node.input[B]] = matrix
    return found


def _matrix(node: Any, stored: dict[str, Any]) -> Matrix | None:
    """The matrix of a product, where it is one that our kernels compute."""
    if (node.op_type, node.domain) != (PRODUCT, THEIRS):
        return None
    given, inputs = numbers(node), [*node.input, "", "", ""]
    bits, block, by_rows = given.get("bits", 4), given.get("block_size", 0), ROWS in given
    if bits not in (2, 4, 8) or given.get("accuracy_level") != INT8_ACTIVATIONS or inputs[G_IDX]:
        return None
    if not by_rows and block not in BLOCKS:
        return None
    starts = [_start(stored.get(inputs[B]), INT8 if by_rows else UINT8), _start(stored.get(inputs[SCALES]), FLOAT)]
    if inputs[ZERO_POINTS]:
        starts.append(_start(stored.get(inputs[ZERO_POINTS]), UINT8))
    if None in starts:
        return None
    weights, scales, points = (*starts, None)[:3]
    assert weights is not None and scales is not None
    return Matrix(bits, given["K"], given["N"], block, weights, scales, points, by_rows)


def _start(tensor: Any, kind: int) -> int | None:
    """Where a tensor of this type begins in `weights.bin`, where it is there."""
    if tensor is None or tensor.data_type != kind or tensor.data_location != EXTERNAL:
        return None
    where = {entry.key: entry.value for entry in tensor.external_data}
    if Path(where.get("location", "")).name != WEIGHTS:
        return None
    return int(where.get("offset", 0))


def _take(graph: Any, matrices: dict[str, Matrix], packed: PackedWeights) -> list[NDArray[np.uint8]]:
    """Let the products of a graph be ours, and drop the weights that they read; the packed ones are returned."""
    made: list[NDArray[np.uint8]] = []
    for node in (node for each in graphs(graph) for node in each.node):
        matrix = matrices.get(node.input[B]) if len(node.input) > B and node.op_type == PRODUCT else None
        if matrix is None:
            continue
        array, layout = packed.matrix(matrix)
        node.attribute.add(name=MATRIX, i=len(made), type=INT)
        made.append(array)
        node.domain = DOMAIN
        set_inputs(node, [node.input[0], "", "", "", "", *node.input[G_IDX + 1 :]])
        node.attribute.add(name="half", i=int(layout.half), type=INT)
        node.attribute.add(name="zero_points", i=int(layout.zero_points), type=INT)
    read = set(read_by(graph))
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return made
