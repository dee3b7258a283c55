"""The seam between a quantizer's tensors and the matrices that they mean."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from edge.errors import CheckpointError
from edge.export.checkpoint.stored import Stored, Tensor
from edge.export.facts.checkpoint import finite
from edge.export.facts.tensors import Format, QTensor

Parts = Mapping[str, Stored]
BLOCKS = {4: 128, 8: 64}  # the largest block of so many bits: activations are rounded in blocks as long
MIN_BLOCK = 16
WORD = 32  # bits of the integers that others are packed into


class Method(Protocol):
    """One quantizer's form: a file next to this one. Its NAMES are those that configurations call it by
    (`quant_method`). Its TRAITS say how people call it, and by which `parts` of a module's tensors it is known; a
    module's ``weight`` is one of them where any other is there."""

    def check(self, settings: Settings) -> None:
        """Raise CheckpointError if these settings are not known here."""
        ...

    def matrix(self, module: str, parts: Parts, settings: Settings) -> Tensor:
        """The weight of a module.

        Raises:
            CheckpointError: the parts do not fit each other.
        """
        ...


class Settings:
    """The quantizer's settings in a configuration. Each value is checked to have the type that is asked for."""

    def __init__(self, values: Mapping[str, Any], path: Path, called: str) -> None:
        self.values, self.path, self.called = values, path, called

    def text(self, key: str, default: str) -> str:
        return str(self._value(key, str, "a text", default))

    def flag(self, key: str, default: bool = False) -> bool:
        return bool(self._value(key, bool, "true or false", default))

    def number(self, key: str, default: int) -> int:
        return int(self._value(key, int, "a whole number", default))

    def refused(self, key: str, value: object, known: str) -> CheckpointError:
        """The sentence for a value that is not known here."""
        return CheckpointError(
            f"{self.path} describes weights quantized by {self.called} with {key} {str(value)[:60]!r}, and {known}; "
            "export the unquantized model."
        )

    def _value(self, key: str, kind: type, described: str, default: object) -> Any:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
            raise CheckpointError(
                f"{self.path} gives {key} of its {self.called} weights as {str(value)[:60]!r}, which is not "
                f"{described}; fetch it again."
            )
        return value


def part_of(module: str, parts: Parts, name: str, types: tuple[torch.dtype, ...], rank: int | None = None) -> Stored:
    """One of a module's tensors, of one of these types, and of so many dimensions.

    Raises:
        CheckpointError: it is missing, or is another.
    """
    if name not in parts:
        file = next(iter(parts.values())).file
        raise CheckpointError(f"{file} lacks the tensor {f'{module}.{name}'!r}, which belongs to its quantized weight.")
    found = parts[name]
    if found.tensor.dtype not in types or (rank is not None and found.tensor.ndim != rank):
        raise misfit(found, f"{found.type} of shape {list(found.shape)}")
    return found


def misfit(stored: Stored, what: str) -> CheckpointError:
    """The sentence for a part that does not fit the others."""
    return CheckpointError(
        f"{stored.file}: the tensor {stored.name!r} is {what}, which does not fit the other tensors of its quantized "
        "weight; fetch the checkpoint again."
    )


def unpack(words: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """Integers of so many bits [..., n] out of rows of bytes or words, which are filled from the low bits up, one after
    the other; the rest of a row that holds none is left out."""
    raw = np.ascontiguousarray(words).view(np.uint8)
    if 8 % bits == 0:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        values = (raw[..., None] >> shifts) & np.uint8(2**bits - 1)
        return np.asarray(values.reshape(*raw.shape[:-1], -1))
    stream = np.unpackbits(raw, axis=-1, bitorder="little")
    count = stream.shape[-1] // bits
    each = stream[..., : count * bits].reshape(*stream.shape[:-1], count, bits)
    return np.packbits(each, axis=-1, bitorder="little")[..., 0]


class Unpacked(NamedTuple):
    """Rows of a matrix: integers [N, K], scales and zero points [N, groups]; without zero points where all are the
    middle."""

    q: NDArray[np.uint8]
    scales: NDArray[np.float32]
    zeros: NDArray[np.uint8] | None


class Integers(ABC):
    """A matrix ``scales[:, g] * (q - zeros[:, g])``, g being the group of a column.

    where: the tensor that messages name. bits: of an integer. group: columns of one. index: the group of each column
    [K], where these do not follow each other.
    """

    def __init__(
        self,
        where: Stored,
        type: str,
        shape: tuple[int, int],
        bits: int,
        group: int,
        index: NDArray[np.int64] | None = None,
    ) -> None:
        self.where, self.type, self.shape, self.bits = where, type, shape, bits
        self.group = min(group, shape[1])
        in_order = index is None or np.array_equal(index, np.arange(shape[1]) // self.group)
        self._index = None if in_order else index

    @abstractmethod
    def unpacked(self, rows: slice) -> Unpacked: ...

    @property
    def form(self) -> Format | None:
        bits = 4 if self.bits <= 4 else 8
        whole = self.group == self.shape[1]  # its only group may end within a block
        block = BLOCKS[bits] if whole else math.gcd(self.group, BLOCKS[bits])
        return Format(bits, block) if self._index is None and block >= MIN_BLOCK else None

    def read(self, rows: slice | None = None) -> NDArray[np.float32]:
        q, scales, zeros = self._sound(rows)
        w = q.astype(np.float32)
        w -= np.float32(2 ** (self.bits - 1)) if zeros is None else self._spread(zeros)
        with np.errstate(over="ignore"):  # `finite` says so
            w *= self._spread(scales)
        return finite(w, self.where.name, self.where.file)

    def blocks(self) -> QTensor | None:
        if self.form is None:
            return None
        bits, block, _ = self.form
        q, scales, zeros = self._sound(None)
        middle = 2 ** (self.bits - 1)
        if zeros is not None and (zeros == middle).all():
            zeros = None
        if zeros is None:  # the middle of more bits is another
            q = q + np.uint8(2 ** (bits - 1) - middle)
        times, count = max(1, self.group // block), -(-self.shape[1] // block)
        if self.group == self.shape[1]:
            times = count
        scales = np.ascontiguousarray(np.repeat(scales, times, axis=1)[:, :count])
        if zeros is not None:
            zeros = np.ascontiguousarray(np.repeat(zeros, times, axis=1)[:, :count])
        return QTensor(bits, block, np.ascontiguousarray(q), scales, zeros, self.type)

    def _sound(self, rows: slice | None) -> Unpacked:
        found = self.unpacked(slice(None) if rows is None else rows)
        finite(found.scales, self.where.name, self.where.file)
        return found

    def _spread(self, per_group: NDArray[Any]) -> NDArray[np.float32]:
        if self._index is not None:
            return np.asarray(per_group[:, self._index], np.float32)
        spread = np.repeat(per_group.astype(np.float32), self.group, axis=1)
        return np.asarray(spread[:, : self.shape[1]])


class Scaled:
    """A matrix of low-precision floats, of which blocks of `block` rows and columns share a scale.

    scales: [N / rows, K / columns] of any floating-point type.
    """

    form = None

    def __init__(self, weight: Stored, scales: Stored, block: tuple[int, int], type: str) -> None:
        self.weight, self.scales, self.type = weight, scales, type
        self.shape = weight.shape
        self.block = min(block[0], self.shape[0]), min(block[1], self.shape[1])

    def read(self, rows: slice | None = None) -> NDArray[np.float32]:
        n, k = self.shape
        start, stop, _ = (rows or slice(None)).indices(n)
        w = self.weight.read(slice(start, stop)).copy()  # it may be mapped
        scales = self.scales.read().reshape(-(-n // self.block[0]), -(-k // self.block[1]))
        with np.errstate(over="ignore"):  # `finite` says so
            w *= np.repeat(scales[np.arange(start, stop) // self.block[0]], self.block[1], axis=1)[:, :k]
        return finite(w, self.weight.name, self.weight.file)

    def blocks(self) -> QTensor | None:
        return None
