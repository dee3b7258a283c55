"""A model's weights as quantization gives them to graphs, and which of its tensors they are."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint


@dataclass(frozen=True)
class QTensor:
    """A weight [N, K] in integer blocks along K: ``w = scales * (q - zero_points)``.

    q: [N, K] uint8, values below ``2**bits``. scales: [N, ceil(K / block_size)] float32. zero_points: the same
    shape, uint8, or None where every zero point is ``2**(bits - 1)``. `method` names who made it.
    """

    bits: int
    block_size: int
    q: NDArray[np.uint8]
    scales: NDArray[np.float32]
    zero_points: NDArray[np.uint8] | None
    method: str

    def dequantize(self) -> NDArray[np.float32]:
        """The float weight [N, K] that the kernels compute with."""
        k = self.q.shape[1]
        zero: Any = 2 ** (self.bits - 1) if self.zero_points is None else self._spread(self.zero_points, k)
        return (self._spread(self.scales, k) * (self.q.astype(np.float32) - zero)).astype(np.float32)

    def cut(self, start: int, stop: int) -> QTensor:
        """Some of its rows."""
        zeros = None if self.zero_points is None else self.zero_points[start:stop]
        return dataclasses.replace(self, q=self.q[start:stop], scales=self.scales[start:stop], zero_points=zeros)

    def _spread(self, per_block: NDArray[Any], k: int) -> NDArray[Any]:
        return np.repeat(per_block, self.block_size, axis=1)[:, :k].astype(np.float32)


@dataclass(frozen=True)
class FloatTensor:
    """A weight kept in floating point: float32 or float16."""

    values: NDArray[Any]


@dataclass(frozen=True)
class RowsTensor:
    """A weight [N, K] in int8 with one scale per output: ``w = scales[:, None] * q``.

    For products of many rows, whose activations are rounded too, each row with a scale of its own; or all rows in
    steps of `step`, where their size is known beforehand. q: [N, K] int8, in which no pair of products overflows 16
    bits (`edge.export.quantize.rows`). scales: [N] float32. precise: rows with scales of their own are read in 16 bits,
    at the cost of a second product.
    """

    q: NDArray[np.int8]
    scales: NDArray[np.float32]
    method: str
    step: float | None = None
    precise: bool = False

    def dequantize(self) -> NDArray[np.float32]:
        """The float weight [N, K] that the kernels compute with."""
        return self.scales[:, None] * self.q.astype(np.float32)


@dataclass(frozen=True)
class GgufTensor:
    """A weight [N, K] as a GGUF file has it.

    raw: [N, bytes of a row] uint8. type: as files number them. method: the type's name. bits: of a weight's integer, or
    of a weight that is a float.
    heads: how many heads the rows are of, whose two halves lie in turns; 0: rows are in transformers' order. place:
    the number of the file and the offset in it, where graphs read it there; None: it is written into the bundle.
    below: another tensor of the file, whose rows follow; the first have a multiple of PANEL. inputs: the places [K] of
    transformers' columns in its rows, where these have another order.
    """

    raw: NDArray[np.uint8]
    columns: int
    type: int
    method: str
    bits: int
    heads: int = 0
    place: tuple[int, int] | None = None
    below: GgufTensor | None = None
    inputs: NDArray[np.int64] | None = None

    @property
    def tensors(self) -> list[GgufTensor]:
        """The tensors of the file whose rows it has."""
        own = dataclasses.replace(self, below=None)
        return [own] if self.below is None else [own, *self.below.tensors]

    @property
    def block_size(self) -> int:
        """Weights of a block; 0 where they are floats."""
        if self.method in FLOATS:
            return 0
        return 256 if self.method.endswith(LARGE_BLOCKS) else 32


Weight = QTensor | RowsTensor | FloatTensor | GgufTensor


def shape_of(weight: Weight) -> tuple[int, int]:
    """Rows and columns of a weight."""
    if isinstance(weight, GgufTensor):
        return sum(len(part.raw) for part in weight.tensors), weight.columns
    rows, columns = (weight.values if isinstance(weight, FloatTensor) else weight.q).shape
    return int(rows), int(columns)


class Format(NamedTuple):
    """The format of a stored matrix; without zero points where `symmetric`."""

    bits: int
    block_size: int
    symmetric: bool = False

    def size(self, rows: int, columns: int) -> float:
        """Return the bits of a matrix. The last block of a row is padded, and the zero points of a row are padded to
        bytes."""
        blocks = -(-columns // self.block_size)
        zero_points = 0 if self.symmetric else 8 * -(-blocks * self.bits // 8)
        return rows * (blocks * (self.block_size * self.bits + 32) + zero_points)


def in_halves(weight: Weight, heads: int) -> Weight:
    """A matrix [heads * dim, K] whose heads have the two rows of each rotated pair side by side, with all first ones of
    a head before all second ones. 0 heads: the matrix as it is."""
    if not heads:
        return weight
    if isinstance(weight, GgufTensor):
        assert not weight.heads, "the file has transformers' order, which is that of pairs"
        return dataclasses.replace(weight, heads=heads)
    return in_order(weight, halves(shape_of(weight)[0], heads))


def in_blocks(weight: Weight, size: int | None) -> Weight:
    """A matrix of integers with the same values in smaller blocks; others, and those that these do not divide, as they
    are."""
    if not isinstance(weight, QTensor) or size is None or weight.block_size % size or weight.block_size == size:
        return weight
    more, blocks = weight.block_size // size, -(-weight.q.shape[1] // size)
    zeros = None if weight.zero_points is None else weight.zero_points.repeat(more, 1)[:, :blocks]
    scales = weight.scales.repeat(more, 1)[:, :blocks]
    return dataclasses.replace(weight, block_size=size, scales=scales, zero_points=zeros)


def in_turns(parts: Sequence[Weight]) -> Weight:
    """Matrices of one format and size as one: first the first row of each, then the second of each, and so on."""
    rows = shape_of(parts[0])[0]
    return in_order(stack_rows(parts), np.arange(len(parts) * rows).reshape(len(parts), rows).T.reshape(-1))


def in_order(weight: Weight, order: NDArray[np.int64]) -> Weight:
    """A matrix's rows in another order."""
    assert not isinstance(weight, GgufTensor), "a file's rows stay where they are"
    if isinstance(weight, FloatTensor):
        return FloatTensor(weight.values[order])
    if isinstance(weight, RowsTensor):
        return dataclasses.replace(weight, q=weight.q[order], scales=weight.scales[order])
    zeros = None if weight.zero_points is None else weight.zero_points[order]
    return dataclasses.replace(weight, q=weight.q[order], scales=weight.scales[order], zero_points=zeros)


def halves(rows: int, heads: int) -> NDArray[np.int64]:
    """Return the places of rows in an order of pairs, in the order of halves."""
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def stack_rows(parts: Sequence[Weight]) -> Weight:
    """Matrices of one format, stacked by rows."""
    first = parts[0]
    assert not isinstance(first, GgufTensor), "each keeps its own type"
    if len(parts) == 1:
        return first
    if isinstance(first, FloatTensor):
        return FloatTensor(_joined(parts, "values"))
    q, scales = _joined(parts, "q"), _joined(parts, "scales")
    if isinstance(first, RowsTensor):
        return dataclasses.replace(first, q=q, scales=scales)
    zeros = [part.zero_points for part in parts if isinstance(part, QTensor)]
    if all(z is None for z in zeros):
        return dataclasses.replace(first, q=q, scales=scales)
    middle = [np.full_like(part.scales, 2 ** (first.bits - 1), np.uint8) for part in parts if isinstance(part, QTensor)]
    whole = np.concatenate([m if z is None else z for z, m in zip(zeros, middle, strict=True)])
    return dataclasses.replace(first, q=q, scales=scales, zero_points=whole)


def _joined(parts: Sequence[Weight], name: str) -> NDArray[Any]:
    return np.concatenate([getattr(part, name) for part in parts])


class LazyWeights(Mapping[str, Weight]):
    """Weights that are computed when they are asked for, so that only one is in memory at a time."""

    def __init__(self, names: list[str], make: Callable[[str], Weight]) -> None:
        self._names = dict.fromkeys(names)
        self._make = make

    def __getitem__(self, name: str) -> Weight:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names


FLOATS = {"F32", "F16", "BF16"}  # of stored types
# Types of GGUF files that our kernels compute with as they are, and bits of a weight.
GGUF_TYPES = {
    **{"Q4_0": 4, "Q4_1": 4, "Q5_0": 5, "Q5_1": 5, "Q8_0": 8, "Q2_K": 2, "Q3_K": 3, "Q4_K": 4, "Q5_K": 5, "Q6_K": 6},
    **{"IQ4_NL": 4, "IQ4_XS": 4, "TQ1_0": 2, "TQ2_0": 2, "MXFP4": 4, "F16": 16, "BF16": 16},
}
PANEL = 16  # rows of such a matrix that these kernels multiply together
LARGE_BLOCKS = ("_K", "_XS", "TQ1_0", "TQ2_0")  # ends of the names of those whose blocks have 256 weights


def has_gguf_blocks(types: Iterable[str]) -> bool:
    """True if one of a GGUF file's types is blocks that our kernels compute with. A file of floats alone has none: a
    run stores it in 8 bits, which is faster."""
    return not (GGUF_TYPES.keys() - FLOATS).isdisjoint(types)


EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

# Projections that read the same input and are packed into one matrix of the graph: one format for all of them.
_PACKED = [("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")]


# What chooses experts: a few rows, whose rounding would choose others.
_ROUTER = re.compile(r"\.(gate|router|shared_expert_gate)\.weight$")


def matrices(checkpoint: Checkpoint) -> list[str]:
    """Names of the weights that methods quantize: every matrix, the embedding and an untied head included, but for
    routers."""
    names = (n for n in checkpoint.names() if n.endswith(".weight") and not _ROUTER.search(n))
    return [n for n in names if len(checkpoint.shape(n)) == 2]


def packed_with(name: str, names: list[str]) -> list[str]:
    """The matrices among `names` that share one format with `name`, itself included."""
    for members in _PACKED:
        for member in members:
            if f".{member}." in name:
                candidates = [name.replace(f".{member}.", f".{other}.") for other in members]
                have = set(names)
                return [c for c in candidates if c in have]
    return [name]
