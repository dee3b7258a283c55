"""Weights in 4 bits, as they are solved: in a file of the cache folder, whose pages the system can reclaim."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from tempfile import TemporaryFile
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge.errors import ExportError
from edge.export.facts.tensors import QTensor
from edge.export.graph.weights import pack_bits
from edge.home import cache_dir


class _Place(NamedTuple):
    """A weight without its integers, their shape, and where in the file they are."""

    weight: QTensor
    shape: tuple[int, int]
    offset: int


class SolvedFile(Mapping[str, QTensor]):
    """Weights by name. Their integers are in a file without a name, which is gone with the program, two in a byte, and
    are read when a weight is asked for. Where none can be written, or the disk is full, weights stay in memory.

    Raises:
        ExportError: on access, where the file cannot be read.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._end = 0
        self._places: dict[str, _Place | QTensor] = {}
        with contextlib.suppress(OSError):
            folder = cache_dir() / "exports"
            folder.mkdir(parents=True, exist_ok=True)
            self._file = TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115

    def add(self, name: str, weight: QTensor) -> None:
        """Keep a weight in 4 bits."""
        assert weight.bits == 4
        rows, columns = weight.q.shape
        if self._write(pack_bits(weight.q, weight.bits)):
            without = dataclasses.replace(weight, q=np.empty((0, 0), np.uint8))
            self._places[name] = _Place(without, (rows, columns), self._end)
            self._end += rows * -(-columns // 2)
        else:
            self._places[name] = weight

    def in_order(self, names: Sequence[str]) -> SolvedFile:
        """Return the weights of these names, in their order, over the same file."""
        found = SolvedFile.__new__(SolvedFile)
        found._file, found._end = self._file, self._end
        found._places = {name: self._places[name] for name in names}
        return found

    def __getitem__(self, name: str) -> QTensor:
        place = self._places[name]
        return place if isinstance(place, QTensor) else dataclasses.replace(place.weight, q=self._read(place))

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def _write(self, packed: NDArray[np.uint8]) -> bool:
        """Write after all others; False if there is no room."""
        if self._file is None:
            return False
        try:
            self._file.seek(self._end)
            rest = packed.reshape(-1).data
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            return False
        return True

    def _read(self, place: _Place) -> NDArray[np.uint8]:
        """Return the integers [N, K] of a weight."""
        assert self._file is not None
        rows, columns = place.shape
        packed = np.empty((rows, -(-columns // 2)), np.uint8)
        try:
            self._file.seek(place.offset)
            rest = packed.reshape(-1).data
            while rest:
                count = self._file.readinto(rest)  # type: ignore[attr-defined]  # it is a raw file
                if not count:
                    raise OSError(0, "it is too short")
                rest = rest[count:]
        except OSError as e:
            raise ExportError(f"What was calibrated cannot be read again from {cache_dir()}: {e.strerror}.") from None
        whole = np.empty((rows, 2 * packed.shape[1]), np.uint8)
        np.bitwise_and(packed, np.uint8(0x0F), out=whole[:, ::2])
        np.right_shift(packed, np.uint8(4), out=whole[:, 1::2])
        return whole[:, :columns]
