"""A graph whose products and attention are those of our kernels: the same but for the operators' domain, and for
weights that lie in another layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from edge.bundle import WEIGHTS, Bundle
from edge.runtime.providers.kernel_rows import ROWS, take_rows
from edge.runtime.providers.kernels import DOMAIN, INT8_DOMAIN, Kernels, without_kernels
from edge.runtime.providers.onnx_proto import ModelProto
from edge.runtime.providers.packed import Matrix, PackedWeights, packed_weights

PRODUCT, ATTENTION, THEIRS = "MatMulNBits", "GroupQueryAttention", "com.microsoft"
FLOAT, UINT8, INT8 = 1, 2, 3  # TensorProto.DataType
NUMBER, INT = 1, 2  # AttributeProto.AttributeType
EXTERNAL = 1  # TensorProto.DataLocation
INT8_ACTIVATIONS = 4  # accuracy_level: activations are rounded to 8 bits
B, SCALES, ZERO_POINTS, G_IDX = 1, 2, 3, 4  # inputs of MatMulNBits
GATES = {"QuickGelu": 1, "FastGelu": 2}  # activations that products of ours take along; of the first, silu alone
NORM = "SkipSimplifiedLayerNormalization"  # of a sum, which is its fourth output
NORM_ALONE = "SimplifiedLayerNormalization"
NORM_MORE = 6  # the first input of a product of ours that MatMulNBits has not: what is added to its rows; then weights
SINK = 11  # an input of GroupQueryAttention
# Its attributes that change what it computes, and that our kernels do not know.
UNKNOWN = ("softcap", "smooth_softmax", "qk_output", "rotary_interleaved")
LANES = 16  # that the sizes of heads must be multiples of
LARGEST_HEAD = 256
SMALL_STEP = "else_branch"  # of the two that attention over bytes has for onnxruntime
# Operators of onnxruntime that move numbers, or compute each one or each row by itself.
BY_ROWS = {
    "Add", "ArgMax", "Cast", "Concat", "Constant", "Expand", "FastGelu", "Gather", "GatherBlockQuantized",
    "GatherND", "Gelu", "Greater", "Mul", "QuickGelu", "RMSNormalization", "ReduceMax", "Reshape", "Shape", "Sigmoid",
    "SimplifiedLayerNormalization", "Size", "SkipSimplifiedLayerNormalization", "Slice", "Split", "Squeeze", "Sub",
    "Transpose", "Unsqueeze",
}  # fmt: skip
LENT = "lent"  # the attribute by which a product finds its matrix


@dataclass(frozen=True)
class KernelGraph:
    """An ONNX model, and the packed matrices of its products, mapped into memory, in the order of `_nodes`.

    independent: whether a row of its results is the same, bit for bit, whatever stands next to it in a step.
    """

    model: Any
    matrices: list[NDArray[np.uint8]]
    independent: bool

    @contextmanager
    def lent(self, kernels: Kernels) -> Iterator[bytes]:
        """The model as onnxruntime loads it while this is open; sessions need the matrices for as long as they live."""
        with ExitStack() as stack:
            for node, matrix in zip(_nodes(self.model.graph), self.matrices, strict=True):
                node.attribute.add(name=LENT, i=stack.enter_context(kernels.lend(matrix)), type=INT)
            yield self.model.SerializeToString()


def kernel_graph(bundle: Bundle, path: Path, kernels: Kernels) -> KernelGraph | None:
    """The graph of a file of the bundle for these kernels; None where there is nothing in it that they compute, or
    their weights cannot be kept, which a warning says."""
    try:
        model = ModelProto.FromString(path.read_bytes())
        if any(node.domain in (DOMAIN, INT8_DOMAIN) for node in model.graph.node):
            return None  # a bundle has no nodes of ours: these would name memory that is not theirs
        take_rows(model.graph)
        found = _products(model.graph)
        if not found:
            return None
        packed = packed_weights(bundle, kernels, _of_all_graphs(bundle) | found)
        matrices = _take(model.graph, found, packed)
        _take_attention(model.graph, bundle)
        _take_what_comes_before(model.graph)
        _take_norms(model.graph)
    except OSError as e:
        without_kernels(f"the weights cannot be kept in the layout of edge_kernels ({e})")
        return None
    except (DecodeError, ValueError, TypeError, KeyError):  # TypeError: of a text that is no UTF-8
        return None  # onnxruntime will say what is wrong with it
    for domain in (DOMAIN, INT8_DOMAIN):
        model.opset_import.add(domain=domain, version=1)
    return KernelGraph(model, matrices, all(_independent(node) for node in model.graph.node))


def _of_all_graphs(bundle: Bundle) -> dict[str, Matrix]:
    found: dict[str, Matrix] = {}
    for graph in bundle.manifest.graphs:
        model = ModelProto.FromString(bundle.path(graph.path).read_bytes())
        take_rows(model.graph)
        found |= _products(model.graph)
    return found


def _products(graph: Any) -> dict[str, Matrix]:
    """The matrices of products that our kernels compute, by the names of their weights."""
    stored = {tensor.name: tensor for tensor in graph.initializer}
    found = {}
    for node in graph.node:
        matrix = _matrix(node, stored)
        if matrix is not None:
            found[node.input[B]] = matrix
    return found


def _matrix(node: Any, stored: dict[str, Any]) -> Matrix | None:
    """The matrix of a product, where it is one that our kernels compute."""
    if (node.op_type, node.domain) != (PRODUCT, THEIRS):
        return None
    numbers = _numbers(node)
    inputs = [*node.input, "", "", ""]
    zeros = inputs[ZERO_POINTS]
    by_rows = ROWS in numbers
    known = by_rows or numbers.get("block_size", 0) in (32, 64, 128, 256)
    if (
        not known
        or numbers.get("bits", 4) not in (2, 4, 8)
        or inputs[G_IDX]
        or numbers.get("accuracy_level") != INT8_ACTIVATIONS
    ):
        return None
    starts = [_start(stored.get(inputs[B]), INT8 if by_rows else UINT8), _start(stored.get(inputs[SCALES]), FLOAT)]
    starts.append(_start(stored.get(zeros), UINT8) if zeros else -1)
    if None in starts:
        return None
    weights, scales, points = (start for start in starts if start is not None)
    size = numbers.get("bits", 4), numbers["K"], numbers["N"], numbers["block_size"]
    return Matrix(*size, weights, scales, points if zeros else None, by_rows)


def _numbers(node: Any) -> dict[str, int]:
    """A node's attributes that are whole numbers."""
    return {attribute.name: attribute.i for attribute in node.attribute}


def _start(tensor: Any, kind: int) -> int | None:
    """Where a tensor of this type begins in `weights.bin`, where it is there."""
    if tensor is None or tensor.data_type != kind or tensor.data_location != EXTERNAL:
        return None
    where = {entry.key: entry.value for entry in tensor.external_data}
    if Path(where.get("location", "")).name != WEIGHTS:
        return None
    return int(where.get("offset", 0))


def _nodes(graph: Any) -> list[Any]:
    """The products of a graph that our kernels compute."""
    return [node for node in graph.node if (node.op_type, node.domain) == (PRODUCT, DOMAIN)]


def _take(graph: Any, matrices: dict[str, Matrix], packed: PackedWeights) -> list[NDArray[np.uint8]]:
    """Let the products of a graph be ours, and drop the weights that they read; the packed ones are returned."""
    made: list[NDArray[np.uint8]] = []
    for node in graph.node:
        matrix = matrices.get(node.input[B]) if len(node.input) > B and node.op_type == PRODUCT else None
        if matrix is None:
            continue
        array, layout = packed.matrix(matrix)
        made.append(array)
        node.domain = DOMAIN
        inputs = [*node.input]
        inputs[B : G_IDX + 1] = [""] * len(inputs[B : G_IDX + 1])
        while not inputs[-1]:
            inputs.pop()
        del node.input[:]
        node.input.extend(inputs)
        node.attribute.add(name="half", i=int(layout.half), type=INT)
        node.attribute.add(name="zero_points", i=int(layout.zero_points), type=INT)
    read = set(_read(graph))
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return made


def _take_attention(graph: Any, bundle: Bundle) -> None:
    """Let the attention of a graph be ours, where its heads are such that our kernels compute it. Over bytes they need
    no second branch for large steps."""
    sizes = {layer.head_dim for layer in bundle.manifest.kv.layers}
    if any(size % LANES or size > LARGEST_HEAD for size in sizes):
        return
    for node in graph.node:
        small = _small_step(node)
        if small is not None and _attends(small):
            outputs = [*node.output]
            node.CopyFrom(small)
            del node.output[:]
            node.output.extend(outputs)
        if _attends(node):
            node.domain = INT8_DOMAIN if any(each.name == "kv_cache_bit_width" for each in node.attribute) else DOMAIN


def _take_what_comes_before(graph: Any) -> None:
    """Let products do what comes before them in a decoder: the gate of a feed-forward layer, and norms of a sum."""
    nodes = list(graph.node)
    made = {name: node for node in nodes for name in node.output if name}
    readers: dict[str, list[Any]] = {}
    for node in nodes:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    weights = {tensor.name for tensor in graph.initializer}
    places, outputs = {node.name: i for i, node in enumerate(nodes)}, {output.name for output in graph.output}
    gone: set[str] = set()

    def only(name: str, reader: Any) -> bool:
        """Whether nothing but this node reads it."""
        return name not in outputs and len(readers[name]) == 1 and readers[name][0].name == reader.name

    for node in _nodes(graph):
        if _numbers(node)["K"] % LANES:
            continue
        before = made.get(node.input[0])
        if before is None or not only(node.input[0], node):
            continue
        if before.op_type == "Mul":
            found = _gate(before, made, only)
            if found is not None:
                gone |= {each.name for each in found}
                node.input[0] = found[0].input[0]
                node.attribute.add(name="gate", i=GATES[found[1].op_type], type=INT)
        elif before.op_type == NORM and before.domain == THEIRS and len(before.input) == 3:
            (_, *others) = [*before.output, "", "", ""][:4]
            after = [places[reader.name] for reader in readers.get(others[2], [])]
            if before.input[2] not in weights or any(others[:2]) or any(place < places[node.name] for place in after):
                continue
            gone.add(before.name)
            inputs = [*node.input, *[""] * NORM_MORE][:NORM_MORE]
            inputs[0] = before.input[0]
            del node.input[:]
            node.input.extend([*inputs, *before.input[1:]])
            node.output.extend([others[2]] if others[2] else [])
            node.attribute.add(name="norm", i=1, type=INT)
            node.attribute.add(name="epsilon", f=_epsilon(before, 1e-12), type=NUMBER)
    kept = [node for node in nodes if node.name not in gone]
    del graph.node[:]
    graph.node.extend(kept)


def _take_norms(graph: Any) -> None:
    """Let norms that no product took along be ours, too: a graph cut between layers then gives the same bits."""
    sizes = {tensor.name: [*tensor.dims] for tensor in graph.initializer}
    for node in graph.node:
        alone = node.op_type == NORM_ALONE and len(node.output) == 1 and _numbers(node).get("axis", -1) == -1
        if not alone and (node.op_type, node.domain, len(node.input)) != (NORM, THEIRS, 3):
            continue
        size = sizes.get(node.input[-1])
        if size is None or len(size) != 1 or size[0] % LANES or any(node.output[1:3]):
            continue
        if alone:
            x, weight = node.input
            del node.input[:]
            node.input.extend([x, "", weight])
            epsilon = _epsilon(node, 1e-5)
            del node.attribute[:]
            node.attribute.add(name="epsilon", f=epsilon, type=NUMBER)
        node.op_type, node.domain = NORM, DOMAIN


def _epsilon(node: Any, otherwise: float) -> float:
    return next((float(each.f) for each in node.attribute if each.name == "epsilon"), otherwise)


def _gate(product: Any, made: dict[str, Any], only: Callable[[str, Any], bool]) -> tuple[Any, Any, Any] | None:
    """The nodes of silu(gate) * up, or of gelu(gate) * up, from where the two are taken apart to the product."""
    activation = made.get(product.input[0])
    if activation is None or activation.op_type not in GATES or not only(activation.output[0], product):
        return None
    split = made.get(activation.input[0])
    if split is None or split.op_type != "Split" or len(split.output) != 2 or len(split.input) != 1:
        return None
    if len(activation.input) != 1:  # or has a bias
        return None
    if activation.op_type == "QuickGelu" and not any(
        each.name == "alpha" and each.f == 1 for each in activation.attribute
    ):
        return None
    parts = activation.input[0], product.input[1]
    if parts != tuple(split.output) or _numbers(split).get("axis") != -1:
        return None
    return (split, activation, product) if only(parts[0], activation) and only(parts[1], product) else None


def _small_step(node: Any) -> Any:
    """The attention over bytes of a node that chooses between two, or None."""
    if node.op_type != "If":
        return None
    branches = {attribute.name: attribute.g for attribute in node.attribute}
    nodes = branches[SMALL_STEP].node
    return nodes[0] if len(nodes) == 1 else None


def _attends(node: Any) -> bool:
    """Whether a node is attention that our kernels compute."""
    if (node.op_type, node.domain) != (ATTENTION, THEIRS) or (len(node.input) > SINK and node.input[SINK]):
        return False
    return not any(attribute.name in UNKNOWN and (attribute.i or attribute.f) for attribute in node.attribute)


def _independent(node: Any) -> bool:
    """Whether a row of a node's results depends on that row's inputs alone, in every bit."""
    return node.domain in (DOMAIN, INT8_DOMAIN) or node.op_type in BY_ROWS


def _read(graph: Any) -> Iterator[str]:
    """What nodes of a graph read, those of its branches too."""
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _read(attribute.g)
    for output in graph.output:
        yield output.name
