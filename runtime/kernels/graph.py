"""A bundle's graph with products, attention and norms by our kernels. It differs in the operators' domain, and in the
layout of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from edge.bundle import WEIGHTS, Bundle
from edge.errors import BundleError
from edge.manifest import KV8, KVLayer, Manifest, Segment
from edge.runtime.kernels.chains import are_one, take_chains
from edge.runtime.kernels.gguf import check_supported, find_gguf, make_ours, refuse_without_kernels, take_gguf
from edge.runtime.kernels.graph_check import EXTERNAL, LENT, MATRIX, parse_graph, read_graph
from edge.runtime.kernels.largest import take_largest
from edge.runtime.kernels.library import (
    DOMAIN,
    GGUF_DOMAIN,
    INT8_DOMAIN,
    PACKAGE,
    Kernels,
    computes_gguf,
    find_kernels,
    without_kernels,
)
from edge.runtime.kernels.nodes import (
    BY_TEXTS,
    EXPERTS,
    OVER_STATES,
    PRODUCT,
    THEIRS,
    add_likeliest,
    has_known_attributes,
    is_independent,
    take_attention,
    take_neighbours,
    take_norms,
    take_position_bias,
    takes_bytes,
    takes_mixed_steps,
)
from edge.runtime.kernels.packed import Matrix, PackedWeights, layout_of, packed_weights
from edge.runtime.kernels.packed_file import described
from edge.runtime.kernels.packed_gguf import GgufMatrix, Progress, packed_gguf
from edge.runtime.kernels.rows import ROWS, take_rows
from edge.runtime.kernels.units import Units, take_units
from edge.runtime.kernels.wires import INT, graphs, numbers, read_by, set_inputs
from edge.runtime.mapped_file import MappedFile

FLOAT, UINT8, INT8 = 1, 2, 3  # TensorProto.DataType
FLOAT_BYTES = 4
INT8_ACTIVATIONS = 4  # accuracy_level: activations are rounded to 8 bits
BLOCKS = (32, 64, 128, 256)
B, SCALES, ZERO_POINTS, G_IDX = 1, 2, 3, 4  # inputs of MatMulNBits
LONGEST = 2**30  # inputs or columns of a product: the library counts in 32 bits
# What rewriting raises of a graph that is not as exporters write it: onnxruntime then runs it, or says what is wrong.
STRANGE = (ArithmeticError, LookupError, TypeError, ValueError)


@dataclass(frozen=True)
class KernelGraph:
    """An ONNX model, and the packed matrices of its products, mapped into memory, which the products refer to by
    number.

    independent: whether a row of its results has the same bits whatever rows are next to it in a step. inside: the
    names of the bundle's nodes in a node that joins several of them, by its name. files: of the matrices.
    needs_kernels: whether only our kernels can run it. mixes: see `takes_mixed_steps`.
    """

    model: Any
    matrices: list[NDArray[np.uint8]]
    independent: bool
    inside: dict[str, list[str]]
    files: list[MappedFile]
    needs_kernels: bool = False
    mixes: bool = False

    @contextmanager
    def lent(self, kernels: Kernels) -> Iterator[bytes]:
        """The model as onnxruntime loads it while this is open; sessions need the matrices for as long as they live."""
        with ExitStack() as stack:
            for node in (node for graph in graphs(self.model.graph) for node in graph.node if node.domain == DOMAIN):
                for attribute in [each for each in node.attribute if each.name.endswith(MATRIX)]:  # of all in a chain
                    lent = stack.enter_context(kernels.lend(self.matrices[attribute.i]))
                    node.attribute.add(name=attribute.name.removesuffix(MATRIX) + LENT, i=lent, type=INT)
            yield self.model.SerializeToString()


def kernel_graph(
    bundle: Bundle, path: Path, kernels: Kernels, *, apart: bool = False, units: Units | None = None
) -> KernelGraph | None:
    """The graph of a file of the bundle for these kernels; None where they compute nothing in it, or their weights
    cannot be stored, which a warning says.

    apart: do not join operators, so that onnxruntime's profiler can tell them apart; those of units stay joined. units:
    that the graph is divided into; None where that cannot be.

    Raises:
        BundleError: it is no graph that a bundle may have; see `read_graph`.
    """
    model = read_graph(path, bundle.root, sizes_of(bundle))
    of_gguf = find_gguf(model.graph)
    written = any(file.path == WEIGHTS for file in bundle.manifest.files)  # else nothing says yet which weights it has
    if not written and not of_gguf:
        return None
    try:
        read, files = list[NDArray[np.uint8]](), list[MappedFile]()
        if of_gguf:
            _take_gguf(bundle, kernels, of_gguf, read, files)
        products = _find(model.graph, kernels) if written else []
        if not products and not of_gguf:
            return None
        if products:
            wanted = [matrix for _, own in products for matrix in own.values()]
            packed = packed_weights(bundle, kernels, wanted, lambda: chain(wanted, _of_all_graphs(bundle, kernels)))
            _take(products, packed, read)
            files.append(packed.file)
        if _their_experts(model.graph):
            without_kernels(f"the {PACKAGE} that is installed does not compute experts such as this model's")
        _drop_unread(model.graph)
        _take_operators(model.graph, layers_of(bundle.manifest), units, kernels)
        mixes = takes_mixed_steps(model.graph, kernels.attention)
        inside = {} if apart and units is None else take_chains(model.graph)
        if units is not None and not are_one(model.graph):
            return None
    except OSError as e:
        if of_gguf:
            raise unkept(bundle, e) from None
        without_kernels(f"the weights cannot be kept in the layout of edge_kernels ({e})")
        return None
    except STRANGE:
        if of_gguf:
            raise BundleError(f"{path} is not as edge writes graphs; export the model again.") from None
        return None
    kept = [each for each in model.opset_import if each.domain != GGUF_DOMAIN]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    for domain in (DOMAIN, INT8_DOMAIN):
        model.opset_import.add(domain=domain, version=1)
    more = () if bundle.manifest.embedding is None else BY_TEXTS
    matrices = {tensor.name for tensor in model.graph.initializer} if more else set[str]()
    independent = all(is_independent(node, more, matrices) for node in model.graph.node)
    return KernelGraph(model, read, independent, inside, files, bool(of_gguf), mixes)


def layers_of(manifest: Manifest) -> list[KVLayer]:
    """The heads of a model's layers; of one that keeps nothing of a text, those of all layers once."""
    dims = manifest.dims
    return manifest.kv.layers if manifest.embedding is None else [KVLayer(dims.num_kv_heads, dims.head_dim)]


def unkept(bundle: Bundle, error: OSError) -> BundleError:
    """The error where the weights of a bundle that only our kernels run cannot be packed."""
    return BundleError(
        f"{bundle.root} cannot be run: the weights cannot be kept in the layout of edge_kernels ({described(error)})."
    )


def sizes_of(bundle: Bundle) -> dict[str, int]:
    """Bytes of the files outside of a bundle that its tensors may lie in, by their locations."""
    return {location: file.size for location, file in bundle.external.items()}


def pack_ahead(bundle: Bundle, kernels: Kernels, path: Path, progress: Progress | None = None) -> None:
    """Pack the matrices of GGUF files that a graph's file reads, so that it opens at once.

    Raises:
        OSError: they can neither be read nor be written.
        BundleError: as `kernel_graph`.
    """
    found = find_gguf(read_graph(path, bundle.root, sizes_of(bundle)).graph)
    check_supported(kernels, found)
    packed_gguf(bundle, kernels, [matrix for _, own in found for matrix in own.values()], progress)


def _take_gguf(
    bundle: Bundle,
    kernels: Kernels,
    found: list[tuple[Any, dict[str, GgufMatrix]]],
    read: list[NDArray[np.uint8]],
    files: list[MappedFile],
) -> None:
    """Let the operators over matrices of GGUF files be ours; their packed matrices and files are added."""
    matrices = list(dict.fromkeys(matrix for _, own in found for matrix in own.values()))
    check_supported(kernels, found)
    if not computes_gguf(kernels):
        raise refuse_without_kernels(bundle.manifest.name)
    packed = packed_gguf(bundle, kernels, matrices)
    take_gguf(found, {matrix: len(read) + i for i, matrix in enumerate(matrices)})
    read += map(packed.bytes, matrices)
    files.append(packed.file)


def _take_operators(graph: Any, layers: list[KVLayer], units: Units | None, kernels: Kernels) -> None:
    """Let the operators of a graph whose products are ours be ours, too, as far as our kernels compute them."""
    stored = {tensor.name: tensor for tensor in graph.initializer}
    for each in graphs(graph):
        if any((node.op_type, node.domain) == (EXPERTS, DOMAIN) for node in each.node):
            from edge.runtime.kernels.mixtures import take_scores

            take_scores(each, stored)
        take_attention(each, layers, kernels.attention)
        take_neighbours(each, stored)
        take_norms(each, stored)
        take_position_bias(each, stored)
    if any(node.op_type in OVER_STATES for node in graph.node):
        from edge.runtime.kernels.over_states import take_states

        take_states(graph, stored, kernels)
    take_largest(graph, stored)
    add_likeliest(graph)
    if units is not None:
        take_units(graph, units)


def runs_in_units(bundle: Bundle, role: str, units: Units) -> bool:
    """True if these kernels run here, and can leave out units of the bundle's graph with this role."""
    spans = tuple((unit.part, tuple(unit.layers)) for unit in units.segments)
    return _asked(bundle, role, _in_units, tuple(bundle.manifest.kv.layers), spans)


@lru_cache(8)
def _in_units(
    path: Path,
    changed: tuple[int, ...],
    kernels: Kernels,
    layers: tuple[KVLayer, ...],
    spans: tuple[tuple[str, tuple[int, ...]], ...],
) -> bool:
    """The same of a graph's file, which is read once while nobody changes it. spans: the parts and layers of units."""
    units = Units(tuple(Segment(part, [*own]) for part, own in spans))
    graph = parse_graph(path).graph
    for node, matrices in _find(graph, kernels):
        _make_ours(node, matrices)
    for node, _ in find_gguf(graph):
        make_ours(node)
    _take_operators(graph, [*layers], units, kernels)
    take_chains(graph)
    return are_one(graph)


def attends_to_bytes(bundle: Bundle) -> bool:
    """True if these kernels run here, and attend to a KV cache in int8 in this bundle's graph with one."""
    return _asked(bundle, KV8, _attends_to_bytes, tuple(bundle.manifest.kv.layers))


def computes_experts(bundle: Bundle) -> bool:
    """True if these kernels run here, and compute all experts of this bundle's decoder."""
    return _asked(bundle, "decoder", _computes_experts)


def _asked(bundle: Bundle, role: str, answer: Callable[..., bool], *facts: Any) -> bool:
    """The answer for the graph with this role, of its file's path and identity, the kernels and these facts; False
    where there is none."""
    path = next((bundle.path(graph.path) for graph in bundle.manifest.graphs if graph.role == role), None)
    kernels = find_kernels()
    if path is None or kernels is None:
        return False
    try:
        return answer(path, _changed(path), kernels, *facts)
    except (OSError, DecodeError, *STRANGE):
        return False  # whoever opens it says why


def _changed(path: Path) -> tuple[int, ...]:
    """Identity of a file's content without reading it: device, inode, size and times. It differs after a change."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@lru_cache(8)
def _attends_to_bytes(path: Path, changed: tuple[int, ...], kernels: Kernels, layers: tuple[KVLayer, ...]) -> bool:
    """The same of a graph's file, which is read once while nobody changes it: a start asks several times."""
    graph = parse_graph(path).graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    # Else onnxruntime's kernels run the whole graph.
    ours = any(node.domain == GGUF_DOMAIN or _matrices(node, stored, kernels) for node in graph.node)
    return ours and takes_bytes(graph, layers, kernels.attention)


@lru_cache(8)
def _computes_experts(path: Path, changed: tuple[int, ...], kernels: Kernels) -> bool:
    graph = parse_graph(path).graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    return all(_matrices(node, stored, kernels) for node in _their_experts(graph))


def _their_experts(graph: Any) -> list[Any]:
    """The experts of a graph that are onnxruntime's operators."""
    nodes = (node for each in graphs(graph) for node in each.node)
    return [node for node in nodes if (node.op_type, node.domain) == (EXPERTS, THEIRS)]


def _of_all_graphs(bundle: Bundle, kernels: Kernels) -> Iterator[Matrix]:
    for graph in bundle.manifest.graphs:
        try:
            model = read_graph(bundle.path(graph.path), bundle.root, sizes_of(bundle))
            yield from [matrix for _, own in _find(model.graph, kernels) for matrix in own.values()]
        except (BundleError, *STRANGE):
            continue  # whoever opens it says why


def _find(graph: Any, kernels: Kernels) -> list[tuple[Any, dict[str, Matrix]]]:
    """The products that our kernels compute, and their matrices, by what the names of their attributes begin with. int8
    products are changed to products of ours."""
    take_rows(graph)
    stored = {tensor.name: tensor for tensor in graph.initializer}
    nodes = (node for each in graphs(graph) for node in each.node)
    return [(node, matrices) for node in nodes if (matrices := _matrices(node, stored, kernels))]


def _matrices(node: Any, stored: dict[str, Any], kernels: Kernels) -> dict[str, Matrix]:
    """The matrices of a node, where our kernels compute it; else none."""
    if (node.op_type, node.domain) == (EXPERTS, THEIRS) and kernels.experts:
        from edge.runtime.kernels.mixtures import matrices_of

        found = matrices_of(node, stored, _start, biased=kernels.biased_experts)
        fit = all(each.block in BLOCKS and kernels.packed_bytes(layout_of(each)) for each in found.values())
        return found if fit else {}
    matrix = _matrix(node, stored, kernels)
    return {} if matrix is None else {"": matrix}


def _matrix(node: Any, stored: dict[str, Any], kernels: Kernels) -> Matrix | None:
    """The matrix of a product, where our kernels compute it, and all that is stored of it fits its sizes."""
    if (node.op_type, node.domain) != (PRODUCT, THEIRS) or not has_known_attributes(node):
        return None
    given, inputs = numbers(node), [*node.input, "", "", ""]
    bits, block, by_rows = given.get("bits", 4), given.get("block_size", 0), ROWS in given
    if bits not in (2, 4, 8) or given.get("accuracy_level") != INT8_ACTIVATIONS or inputs[G_IDX]:
        return None
    if not by_rows and block not in BLOCKS:
        return None
    rows, columns = given.get("K", 0), given.get("N", 0)
    if not (0 < rows <= LONGEST and 0 < columns <= LONGEST):
        return None
    blocks = -(-rows // block)
    if by_rows:
        weights = _start(stored.get(inputs[B]), INT8, [rows, columns])
    else:
        weights = _start(stored.get(inputs[B]), UINT8, [columns, blocks, block * bits // 8])
    scales = _start(stored.get(inputs[SCALES]), FLOAT, [columns, blocks])
    points = None
    if inputs[ZERO_POINTS]:
        points = _start(stored.get(inputs[ZERO_POINTS]), UINT8, [columns, -(-blocks * bits // 8)])
    if weights is None or scales is None or scales % FLOAT_BYTES or (inputs[ZERO_POINTS] and points is None):
        return None
    matrix = Matrix(bits, rows, columns, block, weights, scales, points, by_rows)
    return matrix if kernels.packed_bytes(layout_of(matrix)) else None


def _start(tensor: Any, kind: int, sizes: list[int]) -> int | None:
    """Offset in `weights.bin` of a tensor of this type and these sizes, or with as many numbers; None where it is not
    there. `read_graph` has checked that the whole tensor is in the file."""
    if tensor is None or tensor.data_type != kind or tensor.data_location != EXTERNAL:
        return None
    if [*tensor.dims] != sizes and [*tensor.dims] != [math.prod(sizes)]:
        return None
    where = {entry.key: entry.value for entry in tensor.external_data}
    return int(where["offset"]) if where["location"] == WEIGHTS else None


def _make_ours(product: Any, matrices: dict[str, Matrix]) -> None:
    if product.op_type == EXPERTS:
        from edge.runtime.kernels.mixtures import make_ours as make_experts_ours

        make_experts_ours(product, matrices)
        return
    product.domain = DOMAIN
    set_inputs(product, [product.input[0], "", "", "", "", *product.input[G_IDX + 1 :]])


def _take(products: list[tuple[Any, dict[str, Matrix]]], packed: PackedWeights, read: list[NDArray[np.uint8]]) -> None:
    """Let products of a graph be ours; their packed matrices are added to those that are read."""
    for node, matrices in products:
        _make_ours(node, matrices)
        for prefix, matrix in matrices.items():
            array, layout = packed.matrix(matrix)
            facts = {MATRIX: len(read), "half": layout.half, "zero_points": layout.zero_points}
            read.append(array)
            for name, fact in facts.items():
                node.attribute.add(name=f"{prefix}{name}", i=int(fact), type=INT)


def _drop_unread(graph: Any) -> None:
    """Drop the stored tensors that nothing reads any more."""
    read = set(read_by(graph))
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)
