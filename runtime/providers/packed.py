"""Weights in the layout of our kernels: a file in the cache folder that is made once and mapped into memory from then
on, so that a second start, process or graph pays nothing.

The file holds the matrices one after the other, then an index as JSON, and last how long that is and a mark: a file
without the mark was cut short.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from edge.bundle import WEIGHTS, Bundle, replacing
from edge.home import cache_dir, drop_oldest, mark_used
from edge.runtime.providers.kernels import Kernels, Layout

MARK = b"edge packed weights\n"
END = struct.Struct(f"<Q{len(MARK)}s")
ALIGNMENT = 64
KEPT = 8  # files, each about as large as its bundle


@dataclass(frozen=True)
class Matrix:
    """A matrix of `weights.bin`: where its weights, scales and zero points begin.

    by_rows: they are int8 [inputs, columns] with one block for each column, and not as MatMulNBits reads them.
    """

    bits: int
    inputs: int
    columns: int
    block: int
    weights: int
    scales: int
    zero_points: int | None
    by_rows: bool = False

    @property
    def key(self) -> str:
        """What it is called in the index."""
        return str(self.weights)


class PackedWeights:
    """A file of packed matrices, mapped into memory."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where it cannot be read, and ValueError where it is not whole."""
        self._bytes = _mapped(path)
        if len(self._bytes) < END.size:
            raise ValueError("it was cut short")
        length, mark = END.unpack(self._bytes[-END.size :].tobytes())
        if mark != MARK or length > len(self._bytes) - END.size:
            raise ValueError("it was cut short")
        self._index: dict[str, list[int]] = json.loads(self._bytes[-END.size - length : -END.size].tobytes())

    def has(self, matrices: Iterable[Matrix]) -> bool:
        """Whether all of them are there."""
        return all(matrix.key in self._index for matrix in matrices)

    def matrix(self, matrix: Matrix) -> tuple[NDArray[np.uint8], Layout]:
        """The bytes of one, and what is in them."""
        start, size, half = self._index[matrix.key]
        return self._bytes[start : start + size], _layout(matrix, bool(half))


def packed_weights(
    bundle: Bundle, kernels: Kernels, wanted: Iterable[Matrix], everything: Callable[[], Iterable[Matrix]]
) -> PackedWeights:
    """The packed matrices of a bundle. Where the cache lacks some that are wanted, `everything` is packed.

    Raises:
        OSError: they can neither be read nor be written.
    """
    folder = cache_dir() / "packed"
    (weights,) = (file for file in bundle.manifest.files if file.path == WEIGHTS)
    path = folder / f"{weights.sha256[:16]}-{kernels.version}.bin"
    with contextlib.suppress(OSError, ValueError):
        found = PackedWeights(path)
        if found.has(wanted):
            mark_used(path)
            return found
    with replacing(path) as part:
        _write(part, kernels, np.memmap(bundle.path(WEIGHTS), np.uint8, "r"), everything())
    drop_oldest(folder, KEPT)
    return PackedWeights(path)


def _mapped(path: Path) -> NDArray[np.uint8]:
    """A file, in pages of 2 MiB where the system maps files so: two threads of an AMD EPYC read 50 GB/s of these, and
    26 GB/s of pages of 4 KiB (Linux 6.18, ext4)."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise ValueError("it was cut short")
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with contextlib.suppress(AttributeError, OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def _forget(file: BinaryIO) -> None:
    """Let the system keep nothing of a file that was written: it is read again in the pages that it is mapped in."""
    file.flush()
    os.fsync(file.fileno())
    with contextlib.suppress(AttributeError, OSError):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _layout(matrix: Matrix, half: bool) -> Layout:
    return Layout(matrix.bits, matrix.inputs, matrix.columns, matrix.block, half, matrix.zero_points is not None)


def _write(path: Path, kernels: Kernels, stored: NDArray[np.uint8], matrices: Iterable[Matrix]) -> None:
    index: dict[str, list[int]] = {}
    with path.open("wb") as file:
        for matrix in matrices:
            blocks = -(-matrix.inputs // matrix.block)
            scales = _part(stored, matrix.scales, matrix.columns * blocks * 4).view(np.float32)
            with np.errstate(over="ignore"):
                half = bool((scales.astype(np.float16) == scales).all())
            layout = _layout(matrix, half)
            room = np.empty(kernels.packed_bytes(layout), np.uint8)
            weights = _part(stored, matrix.weights, matrix.columns * blocks * matrix.block * matrix.bits // 8)
            if matrix.by_rows:  # uint8 with the zero point 128
                weights = np.bitwise_xor(weights.reshape(matrix.inputs, matrix.columns).T, np.uint8(128)).copy()
            zeros = None
            if matrix.zero_points is not None:
                zeros = _part(stored, matrix.zero_points, matrix.columns * -(-blocks * matrix.bits // 8))
            kernels.pack(layout, weights, scales, zeros, room)
            file.write(bytes(-file.tell() % ALIGNMENT))
            index[matrix.key] = [file.tell(), room.size, int(half)]
            file.write(room.data)
        named = json.dumps(index).encode()
        file.write(named + END.pack(len(named), MARK))
        _forget(file)


def _part(stored: NDArray[Any], start: int, size: int) -> NDArray[np.uint8]:
    part = stored[start : start + size]
    if part.size != size:
        raise OSError("the bundle's weights are shorter than its graphs say")
    return part
