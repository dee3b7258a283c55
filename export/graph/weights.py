"""Writer of a model's tensors into `weights.bin`: each is written once, and graphs point at its bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnxscript import nn

from edge.bundle import LOCATION, WEIGHTS, Tensors
from edge.errors import ExportError
from edge.export.facts.checkpoint import Checkpoint
from edge.export.facts.tensors import (
    PANEL,
    FloatTensor,
    GgufTensor,
    QTensor,
    RowsTensor,
    Weight,
    halves,
    in_blocks,
    in_halves,
    in_turns,
    shape_of,
    stack_rows,
)
from edge.export.graph.tally import Tally
from edge.manifest import TensorGroup


@dataclass(frozen=True)
class StoredFloat:
    """A float matrix [rows, columns] in `weights.bin`."""

    weight: ir.ExternalTensor
    rows: int
    columns: int


@dataclass(frozen=True)
class StoredBlocks:
    """An integer matrix [rows, columns] in `weights.bin`, in blocks along the columns.

    weight: [rows, blocks, block_size * bits / 8] uint8, low bits first. scales: [rows, blocks] float32.
    zero_points: [rows, ceil(blocks * bits / 8)] uint8, or None for 2**(bits - 1). Columns past `columns` hold the
    zero point.
    """

    weight: ir.ExternalTensor
    scales: ir.ExternalTensor
    zero_points: ir.ExternalTensor | None
    rows: int
    columns: int
    bits: int
    block_size: int


@dataclass(frozen=True)
class StoredRows:
    """An int8 matrix in `weights.bin` with one scale per output, transposed.

    weight: [columns, rows] int8. scales: [rows] float32. step: what activations are rounded to; None: each row has its
    own. precise: these are read in 16 bits, in two products, for which onnxruntime packs the weights twice.
    """

    weight: ir.ExternalTensor
    scales: ir.ExternalTensor
    rows: int
    columns: int
    step: float | None = None
    precise: bool = False


@dataclass(frozen=True)
class StoredGguf:
    """Matrices of a GGUF file side by side, in `weights.bin` or in the file, together [rows, columns].

    weights: the bytes of each. types, heads, inputs: see `GgufTensor`. counts: rows of each, of which all but the last
    are multiples of 16.
    """

    weights: list[ir.ExternalTensor]
    types: list[int]
    heads: list[int]
    counts: list[int]
    columns: int
    inputs: NDArray[np.int64] | None = None

    @property
    def rows(self) -> int:
        return sum(self.counts)


Stored = StoredFloat | StoredBlocks | StoredRows | StoredGguf
PREFILL = "prefill"  # before the names of what only the int8 prefill graph has


class Weights:
    """Writes tensors into a bundle as the modules ask for them, and adds up what each group takes.

    `matrices` holds linears and embeddings by parameter name, and those norms and biases that quantization changed;
    the others are read from `source`. One matrix is held in memory at a time.
    """

    def __init__(self, source: Checkpoint, matrices: Mapping[str, Weight], writer: Tensors) -> None:
        self._source = source
        self._matrices = matrices
        self._writer = writer
        self._stored: dict[str, Stored] = {}
        self._in_turns: dict[str, dict[tuple[int, ...], Stored]] = {}
        self._tallies: dict[str, Tally] = {}
        self._counted: set[str] = set()  # the vectors among the tallies
        self._paired: dict[str, int] = {}

    def turn_into_halves(self, module: str, heads: int) -> None:
        """Store a linear layer's rows in the order of `tensors.in_halves`."""
        self._paired |= {f"{module}.weight": heads, f"{module}.bias": heads}

    def matrices(self, names: Sequence[str], stored_as: str, group: str) -> list[Stored]:
        """Store the matrices `names`, stacked by rows under the one name `stored_as` where their formats allow it.

        Returns one stored matrix, or one for each name where bits, block sizes or float types differ, and of precise
        ones: two stacked products would set the maximum of an encoder's memory.
        """
        if stored_as in self._stored:
            return [self._stored[stored_as]]
        parts = [self._matrix(name) for name in names]
        if any(isinstance(part, GgufTensor) and part.below is not None for part in parts):
            each = [part.tensors if isinstance(part, GgufTensor) else [part] for part in parts]
            names = [
                f"{name}.{i}" if i else name for name, own in zip(names, each, strict=True) for i in range(len(own))
            ]
            parts = [part for own in each for part in own]
        apart = len(parts) > 1 and any(isinstance(part, RowsTensor) and part.precise for part in parts)
        gguf = [part for part in parts if isinstance(part, GgufTensor)]
        apart |= len(parts) > 1 and any(part.inputs is not None for part in gguf)
        if len(gguf) == len(parts) and not apart and not any(len(part.raw) % PANEL for part in gguf[:-1]):
            return [self._store_gguf(stored_as, names, gguf, group)]
        if gguf:
            return [
                self._store_gguf(name, [name], [part], group)
                if isinstance(part, GgufTensor)
                else self._store(name, part, group)
                for name, part in zip(names, parts, strict=True)
            ]
        if len({_format(part) for part in parts}) == 1 and not apart:
            return [self._store(stored_as, stack_rows(parts), group)]
        return [self._store(name, part, group) for name, part in zip(names, parts, strict=True)]

    def has(self, name: str) -> bool:
        """True if there is a matrix of this name."""
        return name in self._matrices

    def finest_block(self, names: Sequence[str]) -> int | None:
        """The smallest block of these matrices; None where one has none."""
        blocks = [part.block_size if isinstance(part, QTensor) else 0 for part in map(self._matrix, names)]
        return min(blocks) or None

    def in_turns(
        self, names: Sequence[Sequence[str]], stored_as: str, group: str, block: int | None = None
    ) -> dict[tuple[int, ...], Stored]:
        """Store matrices as one for each format among them, in which the rows of those of each list stand in turns.

        block: of integers, which may be smaller than they are in. Returns each by the places of its lists in `names`.
        ExportError if those of a list are not of one format.
        """
        if stored_as in self._in_turns:
            return self._in_turns[stored_as]
        parts: dict[tuple[Any, ...], dict[int, Weight]] = {}
        for i, together in enumerate(names):
            matrices = [in_blocks(self._matrix(name), block) for name in together]
            form, *others = {_format(matrix) for matrix in matrices}
            if others:
                raise ExportError(
                    f"{stored_as} is of several formats, which no operator computes; choose --weights int8."
                )
            parts.setdefault(form, {})[i] = in_turns(matrices)
        made: dict[tuple[int, ...], Stored] = {}
        for of_form in parts.values():
            suffix = f".{next(iter(of_form))}" if len(parts) > 1 else ""
            made[tuple(of_form)] = self._store(f"{stored_as}{suffix}", stack_rows([*of_form.values()]), group)
        self._in_turns[stored_as] = made
        return made

    def matrix(self, name: str, group: str) -> Stored:
        return self.matrices([name], name, group)[0]

    def vector(
        self,
        names: Sequence[str],
        stored_as: str,
        group: str,
        edit: Callable[[NDArray[np.float32]], Any] = np.asarray,
        *,
        zeros: Mapping[str, int] | None = None,
    ) -> nn.Parameter:
        """A parameter of the float32 vectors `names`, joined; `edit` may change the values before they are stored.

        zeros: lengths of those that the checkpoint does not have, which are zeros.
        """
        lengths = zeros or {}
        parts = [np.zeros(lengths[n]) if n in lengths else self._vector(n) for n in names]
        values = np.concatenate([part.astype(np.float32, copy=False) for part in parts])
        self._count(stored_as, group, values)
        return self.table(stored_as, np.asarray(edit(values), dtype=np.float32))

    def _count(self, stored_as: str, group: str, values: NDArray[np.float32]) -> None:
        """Count a vector in the manifest's groups, once."""
        if stored_as not in self._counted:
            self._counted.add(stored_as)
            self._tally(group).add(values.size, values.nbytes, 32, 0, "float32")

    def read(self, name: str) -> NDArray[np.float32]:
        """A tensor of the checkpoint as it is, for tables that are made of it."""
        return self._source.read(name)

    def table(self, name: str, values: NDArray[Any]) -> nn.Parameter:
        """A parameter of values that are no weights, such as the rotary tables."""
        return parameter(self._tensor(name, values))

    def rows(self, name: str) -> int:
        """Return the number of outputs of the matrix `name`."""
        return shape_of(self._matrix(name))[0]

    def groups(self) -> list[TensorGroup]:
        """Return the statistics of the tensors stored so far, by group."""
        return [tally.group(name) for name, tally in self._tallies.items()]

    def _matrix(self, name: str) -> Weight:
        try:
            return in_halves(self._matrices[name], self._paired.get(name, 0))
        except KeyError:
            raise ExportError(f"The checkpoint has no weight {name!r}, which its configuration asks for.") from None

    def _vector(self, name: str) -> NDArray[Any]:
        try:
            changed = self._matrices[name]
        except KeyError:
            values = self._source.read(name)
        else:
            assert isinstance(changed, FloatTensor)
            values = changed.values
        return values[halves(len(values), self._paired[name])] if name in self._paired else values

    def _tally(self, group: str) -> Tally:
        return self._tallies.setdefault(group, Tally())

    def _store_gguf(self, stored_as: str, names: Sequence[str], parts: Sequence[GgufTensor], group: str) -> Stored:
        if stored_as in self._stored:
            return self._stored[stored_as]
        tensors = list[ir.ExternalTensor]()
        for name, part in zip(names, parts, strict=True):
            if part.place is None:
                tensors.append(self._tensor(name, part.raw.reshape(-1)))
            else:
                file, offset = part.place
                size = part.raw.size
                location = f"{LOCATION}{file}"
                tensors.append(external(name, offset, size, ir.DataType.UINT8, [size], location=location))
            weights = len(part.raw) * part.columns
            self._tally(group).add(weights, part.raw.size, part.bits, part.block_size, part.method)
        stored = StoredGguf(
            tensors,
            [part.type for part in parts],
            [part.heads for part in parts],
            [len(part.raw) for part in parts],
            parts[0].columns,
            parts[0].inputs,
        )
        self._stored[stored_as] = stored
        return stored

    def _store(self, name: str, matrix: Weight, group: str) -> Stored:
        if name in self._stored:
            return self._stored[name]
        assert not isinstance(matrix, GgufTensor)
        stored: Stored
        rows, columns = shape_of(matrix)
        if isinstance(matrix, FloatTensor):
            stored = StoredFloat(self._tensor(name, matrix.values), rows, columns)
            size, bits, block_size, method = 0, stored.weight.dtype.bitwidth, 0, str(matrix.values.dtype)
        else:
            scales, method = self._tensor(f"{name}.scales", matrix.scales), matrix.method
            size = scales.nbytes
            if isinstance(matrix, RowsTensor):
                weight = self._tensor(name, np.ascontiguousarray(matrix.q.T))
                stored = StoredRows(weight, scales, rows, columns, matrix.step, matrix.precise)
                bits, block_size = 8, columns
            else:
                bits, block_size, zeros = matrix.bits, matrix.block_size, None
                weight = self._tensor(name, pack_blocks(matrix))
                if matrix.zero_points is not None:
                    zeros = self._tensor(f"{name}.zero_points", pack_bits(matrix.zero_points, bits))
                    size += zeros.nbytes
                stored = StoredBlocks(weight, scales, zeros, rows, columns, bits, block_size)
        self._stored[name] = stored
        self._tally(group).add(rows * columns, stored.weight.nbytes + size, bits, block_size, method)
        return stored

    def _tensor(self, name: str, values: NDArray[Any]) -> ir.ExternalTensor:
        span = self._writer.add_tensor(name, values)
        return external(name, span.offset, span.length, ir.DataType.from_numpy(values.dtype), values.shape)


def external(
    name: str, offset: int, length: int, dtype: ir.DataType, shape: Sequence[int], *, location: str = WEIGHTS
) -> ir.ExternalTensor:
    """A tensor whose bytes lie in `weights.bin`, or in a file outside of the bundle."""
    return ir.ExternalTensor(location, offset, length, dtype, shape=ir.Shape(shape), name=name)


def view(tensor: ir.ExternalTensor | ir.Tensor, shape: Sequence[int]) -> ir.ExternalTensor | ir.Tensor:
    """Return a tensor with another shape over the same bytes, in `weights.bin` or in memory."""
    if isinstance(tensor, ir.Tensor):
        return ir.Tensor(tensor.numpy().reshape(shape), name=tensor.name)
    assert tensor.offset is not None and tensor.length is not None
    where = str(tensor.location)
    return external(tensor.name, tensor.offset, tensor.length, tensor.dtype, shape, location=where)


def parameter(tensor: ir.ExternalTensor | ir.Tensor) -> nn.Parameter:
    """A module's parameter that points at `tensor`; several may point at the same one."""
    return nn.Parameter(tensor.shape.numpy(), data=view(tensor, tensor.shape.numpy()))


def pack_bits(values: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Pack [rows, n] values below 2**bits into [rows, ceil(n * bits / 8)] bytes, the first in the low bits."""
    per_byte = 8 // bits
    if per_byte == 1:
        return np.ascontiguousarray(values)
    missing = -values.shape[1] % per_byte
    padded = np.pad(values, ((0, 0), (0, missing))) if missing else values
    packed = padded[:, 0::per_byte].copy()
    for i in range(1, per_byte):
        packed |= padded[:, i::per_byte] << np.uint8(i * bits)
    return packed


def pack_blocks(matrix: QTensor) -> NDArray[np.uint8]:
    """A matrix's integers as they are stored: [rows, blocks, block_size * bits / 8]."""
    rows, columns = matrix.q.shape
    blocks = -(-columns // matrix.block_size)
    q = matrix.q
    missing = blocks * matrix.block_size - columns
    if missing:
        zero = matrix.zero_points
        fill = np.full((rows, 1), 2 ** (matrix.bits - 1), np.uint8) if zero is None else zero[:, -1:]
        q = np.concatenate([q, np.repeat(fill, missing, axis=1)], axis=1)
    return pack_bits(q, matrix.bits).reshape(rows, blocks, matrix.block_size * matrix.bits // 8)


def _format(matrix: Weight) -> tuple[Any, ...]:
    """Matrices of the same format can be stacked into one."""
    if isinstance(matrix, FloatTensor):
        return (matrix.values.dtype,)
    if isinstance(matrix, RowsTensor):
        return ("rows", matrix.step, matrix.precise)
    assert isinstance(matrix, QTensor)
    return (matrix.bits, matrix.block_size)


class PrefillWeights(Weights):
    """The weights of the int8 prefill graph, in the decode graph's file: what both share is stored once.

    `matrices` holds those of the layers, and the norms and biases that differ from the decode graph's.
    """

    def __init__(self, source: Checkpoint, matrices: Mapping[str, Weight], writer: Tensors, decode: Weights) -> None:
        super().__init__(source, matrices, writer)
        self._decode = decode

    def matrices(self, names: Sequence[str], stored_as: str, group: str) -> list[Stored]:
        if not set(names).issubset(self._matrices):  # embedding and head
            return self._decode.matrices(names, stored_as, group)
        if group == "feed_forward":  # gate and up apart: to split their product costs more than a second one
            return [super(PrefillWeights, self).matrices([name], f"{PREFILL}.{name}", group)[0] for name in names]
        return super().matrices(names, f"{PREFILL}.{stored_as}", group)

    def vector(
        self,
        names: Sequence[str],
        stored_as: str,
        group: str,
        edit: Callable[[NDArray[np.float32]], Any] = np.asarray,
        *,
        zeros: Mapping[str, int] | None = None,
    ) -> nn.Parameter:
        if not set(names).isdisjoint(self._matrices):
            return super().vector(names, f"{PREFILL}.{stored_as}", group, edit, zeros=zeros)
        return self._decode.vector(names, stored_as, group, edit, zeros=zeros)
