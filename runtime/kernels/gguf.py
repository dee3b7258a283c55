"""Products with matrices of GGUF files, and rows of them, which only our kernels compute.

A bundle's graph has them as operators of the domain `edge.gguf`:

- ``MatMulGguf(A, bias, W...)``: rows [..., K] times matrices side by side, to [..., N]. `K`, `N` and `parts`, the
  number of the matrices, are attributes; of matrix i also `part.<i>.type`, the file's number of its type, `part.<i>.N`,
  its rows in the file, and `part.<i>.heads`: see `GgufMatrix`. The bias may be missing.
- ``GgufRows(ids, W)``: rows [..., K] of one matrix, which is part 0.
- ``GgufExperts(A, scores, weights, gate, up, down, biases...)``: what onnxruntime's QMoE makes of its first two inputs
  and its 15th, over three matrices, each of which has the rows of expert after expert. Their attributes are those
  above, after `gate.`, `up.` and `down.`; `experts` is the number of these, and `k` and `normalize_routing_weights` are
  QMoE's. The two biases may be missing: of gate and up in turns, and of down. `alpha`, `beta` and `limit` are QMoE's
  of the activation; each may be missing.

A matrix is a uint8 tensor of its bytes, in `weights.bin` or in a file outside of the bundle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edge.errors import BundleError
from edge.runtime.kernels.graph_check import EXTERNAL
from edge.runtime.kernels.library import DOMAIN, GGUF_DOMAIN, Kernels
from edge.runtime.kernels.nodes import EXPERTS, LANES, PARTS, PRODUCT
from edge.runtime.kernels.packed_gguf import GgufMatrix
from edge.runtime.kernels.wires import INT, graphs, numbers, set_inputs

MATMUL, ROWS_OF, EXPERTS_OF = "MatMulGguf", "GgufRows", "GgufExperts"
FIRST = {MATMUL: 2, ROWS_OF: 1, EXPERTS_OF: 3}  # the input that is the first matrix
OF_EXPERTS = ("gate.", "up.", "down.")  # what the attributes of their matrices begin with
CHOICE = ("k", "normalize_routing_weights", "experts")
GATES = ("alpha", "beta", "limit")
FACTS = ("N", "type", "heads")  # of a matrix
UINT8 = 2  # TensorProto.DataType
MOST_PARTS = 16
LACKING = "the installed edge-lm-kernels do not compute; install those of this version of edge."
MOST = 1 << 24  # inputs or columns of a matrix, which the library takes


def find_gguf(graph: Any) -> list[tuple[Any, dict[str, GgufMatrix]]]:
    """The operators over matrices of GGUF files, and their matrices, by what the names of their attributes begin with.

    Raises:
        BundleError: one is not as exports write it.
    """
    stored = {tensor.name: tensor for tensor in graph.initializer}
    nodes = (node for each in graphs(graph) for node in each.node if node.domain == GGUF_DOMAIN)
    return [(node, _matrices(node, stored)) for node in nodes]


def take_gguf(found: list[tuple[Any, dict[str, GgufMatrix]]], place: Mapping[GgufMatrix, int]) -> None:
    """Let these operators be ours. place: the numbers of their packed matrices, as `KernelGraph` has them."""
    for node, matrices in found:
        for prefix, matrix in matrices.items():
            node.attribute.add(name=f"{prefix}matrix", i=place[matrix], type=INT)
        make_ours(node)


def make_ours(node: Any) -> None:
    """The same without matrices."""
    node.domain = DOMAIN
    if node.op_type == MATMUL:
        node.op_type = PRODUCT
        set_inputs(node, [node.input[0], "", "", "", "", node.input[1]])
    elif node.op_type == EXPERTS_OF:
        node.op_type = EXPERTS
        first = FIRST[EXPERTS_OF]
        set_inputs(node, [*node.input[:first], *node.input[first + len(OF_EXPERTS) :]])
    else:
        set_inputs(node, [node.input[0]])


def refuse_without_kernels(name: str) -> BundleError:
    """The error where our kernels do not run."""
    return BundleError(
        f"{name} has weights in the blocks of GGUF files, which only edge-lm-kernels compute, and these do not run "
        "here; install them (pip install edge-lm-kernels), or export the model with --weights keep."
    )


def check_supported(kernels: Kernels, found: list[tuple[Any, dict[str, GgufMatrix]]]) -> None:
    """Raise BundleError if the kernels do not compute an operator, or the rows of a matrix do not have the bytes of its
    type."""
    for node, matrices in found:
        if node.op_type == EXPERTS_OF:
            more = len(node.input) > FIRST[EXPERTS_OF] + len(OF_EXPERTS)
            more |= any(attribute.name in GATES for attribute in node.attribute)
            if not (kernels.biased_experts if more else kernels.experts):
                raise BundleError(f"A graph has experts, which {LACKING}")
        for matrix in matrices.values():
            panel = kernels.gguf_panel(matrix.layout) if kernels.gguf_bytes(matrix.layout) else None
            if panel is None or panel.row != matrix.row:
                sizes = f"{matrix.columns} by {matrix.inputs}"
                raise BundleError(f"A graph has a matrix of type {matrix.type}, {sizes}, which {LACKING}")


def _matrices(node: Any, stored: Mapping[str, Any]) -> dict[str, GgufMatrix]:
    names = [attribute.name for attribute in node.attribute]
    if node.op_type not in FIRST or len({*names}) < len(names):
        raise _strange(node)
    found, first = dict[str, GgufMatrix](), FIRST[node.op_type]
    if node.op_type == EXPERTS_OF:
        known, inputs = {*CHOICE, *GATES}, [*node.input[first:]]
        if len(inputs) not in (len(OF_EXPERTS), len(OF_EXPERTS) + 2):
            raise _strange(node)
        for prefix, name in zip(OF_EXPERTS, inputs, strict=False):
            found |= _side_by_side(node, prefix, [name], stored)
    else:
        known = set[str]()
        found = _side_by_side(node, "", node.input[first:], stored)
    sizes = {prefix.rpartition("part.")[0] for prefix in found}
    known |= {f"{of}{size}" for of in sizes for size in ("K", "N", PARTS)}
    known |= {f"{prefix}{fact}" for prefix in found for fact in FACTS}
    if not known.issuperset(names):
        raise _strange(node)
    return found


def _side_by_side(node: Any, of: str, inputs: Sequence[str], stored: Mapping[str, Any]) -> dict[str, GgufMatrix]:
    """The matrices of one product. of: what the names of all its attributes begin with."""
    given = numbers(node)
    k, parts, found = given.get(f"{of}K", 0), given.get(f"{of}{PARTS}", 0), dict[str, GgufMatrix]()
    if not 1 <= parts <= MOST_PARTS or len(inputs) != parts:
        raise _strange(node)
    for i, name in enumerate(inputs):
        prefix, tensor = f"{of}part.{i}.", stored.get(name)
        n, kind, heads = (given.get(f"{prefix}{fact}", 0) for fact in FACTS)
        if (
            tensor is None
            or tensor.data_type != UINT8
            or tensor.data_location != EXTERNAL
            or not (0 < k <= MOST and 0 < n <= MOST and 0 <= kind <= MOST)
        ):
            raise _strange(node)
        where = {entry.key: entry.value for entry in tensor.external_data}
        row, rest = divmod(int(where["length"]), n)
        if rest or not 0 <= heads <= n:
            raise _strange(node)
        found[prefix] = GgufMatrix(where["location"], int(where["offset"]), row, kind, k, n, heads)
    counts = [matrix.columns for matrix in found.values()]
    if any(count % LANES for count in counts[:-1]) or given.get(f"{of}N") != sum(counts):
        raise _strange(node)
    return found


def _strange(node: Any) -> BundleError:
    return BundleError(f"The operator {node.name[:80]!r} is not as edge writes it; export the model again.")
