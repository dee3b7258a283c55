"""Products with matrices of GGUF files, and rows of them, which only our kernels compute.

A bundle's graph has them as operators of the domain `edge.gguf`:

- ``MatMulGguf(A, bias, W...)``: rows [..., K] times matrices side by side, to [..., N]. `K`, `N` and `parts`, the
  number of the matrices, are attributes; of matrix i also `part.<i>.type`, the file's number of its type, `part.<i>.N`,
  its rows in the file, and `part.<i>.heads`: see `GgufMatrix`. The bias may be missing.
- ``GgufRows(ids, W)``: rows [..., K] of one matrix, which is part 0.

A matrix is a uint8 tensor of its bytes, in `weights.bin` or in a file outside of the bundle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge.errors import BundleError
from edge.runtime.kernels.graph_check import EXTERNAL
from edge.runtime.kernels.library import DOMAIN, GGUF_DOMAIN, Kernels
from edge.runtime.kernels.nodes import LANES, PARTS, PRODUCT
from edge.runtime.kernels.packed_gguf import GgufMatrix
from edge.runtime.kernels.wires import INT, graphs, numbers, set_inputs

MATMUL, ROWS_OF = "MatMulGguf", "GgufRows"
FIRST = 2  # the input of MATMUL that is its first matrix
UINT8 = 2  # TensorProto.DataType
MOST_PARTS = 16
MOST = 1 << 24  # inputs or columns of a matrix, which the library takes


def find_gguf(graph: Any) -> list[tuple[Any, list[GgufMatrix]]]:
    """The operators over matrices of GGUF files, and their matrices.

    Raises:
        BundleError: one is not as exports write it.
    """
    stored = {tensor.name: tensor for tensor in graph.initializer}
    nodes = (node for each in graphs(graph) for node in each.node if node.domain == GGUF_DOMAIN)
    return [(node, _matrices(node, stored)) for node in nodes]


def take_gguf(graph: Any, found: list[tuple[Any, list[GgufMatrix]]], place: Mapping[GgufMatrix, int]) -> None:
    """Let these operators be ours. place: the numbers of their packed matrices, as `KernelGraph` has them."""
    for node, matrices in found:
        for i, matrix in enumerate(matrices):
            node.attribute.add(name=f"part.{i}.matrix", i=place[matrix], type=INT)
        make_ours(node)


def make_ours(node: Any) -> None:
    """The same without matrices."""
    node.domain = DOMAIN
    if node.op_type == MATMUL:
        node.op_type = PRODUCT
        set_inputs(node, [node.input[0], "", "", "", "", node.input[1]])
    else:
        set_inputs(node, [node.input[0]])


def refuse_without_kernels(name: str) -> BundleError:
    """The error where our kernels do not run."""
    return BundleError(
        f"{name} has the weights of a GGUF file as they are, which only edge-lm-kernels compute, and these do not run "
        "here; install them (pip install edge-lm-kernels), or export the file with --weights keep."
    )


def check_supported(kernels: Kernels, matrices: list[GgufMatrix]) -> None:
    """Raise BundleError if the kernels do not compute a matrix, or its rows do not have the bytes of its type."""
    for matrix in matrices:
        panel = kernels.gguf_panel(matrix.layout) if kernels.gguf_bytes(matrix.layout) else None
        if panel is None or panel.row != matrix.row:
            raise BundleError(
                f"A graph has a matrix of type {matrix.type}, {matrix.columns} by {matrix.inputs}, which the installed "
                "edge-lm-kernels do not compute; install those of this version of edge."
            )


def _matrices(node: Any, stored: Mapping[str, Any]) -> list[GgufMatrix]:
    given = numbers(node)
    parts, inputs = given.get(PARTS, 0), [*node.input]
    first = FIRST if node.op_type == MATMUL else 1
    facts = ("N", "type", "heads")
    known = {"K", "N", PARTS, *(f"part.{i}.{fact}" for i in range(min(parts, MOST_PARTS)) for fact in facts)}
    names = [attribute.name for attribute in node.attribute]
    if not known.issuperset(names) or len({*names}) < len(names):
        raise _strange(node)
    if node.op_type not in (MATMUL, ROWS_OF) or not 1 <= parts <= MOST_PARTS or len(inputs) != first + parts:
        raise _strange(node)
    found = []
    for i, name in enumerate(inputs[first:]):
        k, (n, kind, heads) = given.get("K", 0), (given.get(f"part.{i}.{fact}", 0) for fact in facts)
        tensor = stored.get(name)
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
        found.append(GgufMatrix(where["location"], int(where["offset"]), row, kind, k, n, heads))
    counts = [matrix.columns for matrix in found]
    if any(count % LANES for count in counts[:-1]) or given.get("N") != sum(counts):
        raise _strange(node)
    return found


def _strange(node: Any) -> BundleError:
    return BundleError(f"The operator {node.name[:80]!r} is not as edge writes it; export the model again.")
