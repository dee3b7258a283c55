"""Weights in the layout of our kernels: those of `weights.bin` that MatMulNBits would read, packed once into a file of
the cache folder (`packed_file`), which is named by its sources: the weights and all graphs of a bundle, by their
sha256s, and the format.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.bundle import WEIGHTS, Bundle
from edge.errors import BundleError
from edge.runtime.kernels.library import OFF, VARIABLE, Kernels, Layout, find_kernels
from edge.runtime.kernels.packed_file import PackedFile, packed_file, packed_path
from edge.runtime.kernels.packed_gguf import gguf_path
from edge.runtime.kernels.packed_writer import PackedWriter, forget_begun
from edge.runtime.mapped_file import mapped_file, unchanged

WIDENED = 2  # what packing may make of weights, by their bytes; the kernels' layout has at most 1.2 times as many
PADDED = 64 << 20  # bytes by which small matrices may be padded


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


class PackedWeights:
    """Packed matrices of a bundle's `weights.bin`."""

    def __init__(self, file: PackedFile[Matrix]) -> None:
        self._file, self.file = file, file.file

    def matrix(self, matrix: Matrix) -> tuple[NDArray[np.uint8], Layout]:
        """The bytes of a packed matrix, and their layout."""
        place = self._file.place(matrix)
        assert place is not None
        return self._file.bytes(matrix), layout_of(matrix, place.half)


def packed_weights(
    bundle: Bundle, kernels: Kernels, wanted: Iterable[Matrix], everything: Callable[[], Iterable[Matrix]]
) -> PackedWeights:
    """The packed matrices of a bundle. Where the cache lacks some that are wanted, `everything` is packed.

    Raises:
        OSError: they can neither be read nor be written.
    """
    wanted = list(wanted)

    def fits(found: PackedFile[Matrix]) -> bool:
        places = [(matrix, found.place(matrix)) for matrix in wanted]
        return all(
            place is not None and place.size == kernels.packed_bytes(layout_of(matrix, place.half))
            for matrix, place in places
        )

    def write(writer: PackedWriter) -> None:
        with unchanged([mapped_file(bundle.path(WEIGHTS))]):
            _write(writer, kernels, np.memmap(bundle.path(WEIGHTS), np.uint8, "r"), everything())

    sources = [bundle.path(WEIGHTS)]
    return PackedWeights(packed_file(path_of(bundle, kernels), _sha256s(bundle)[WEIGHTS], Matrix, fits, write, sources))


def path_of(bundle: Bundle, kernels: Kernels) -> Path:
    """Path of a bundle's packed matrices. Other weights, graphs or formats have other files."""
    files = _sha256s(bundle)
    made_of = [files[WEIGHTS], *sorted({files[graph.path] for graph in bundle.manifest.graphs})]
    return packed_path(made_of, kernels.version)


def forget_packed(bundle: Bundle) -> None:
    """Remove the packed matrices of a bundle, so that the next use packs them again from its files.

    Raises:
        BundleError: the file stays.
    """
    kernels = find_kernels()
    if kernels is None:
        return
    for path in (path_of(bundle, kernels), gguf_path(bundle, kernels)):
        try:
            forget_begun(path)
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except NotADirectoryError:
            pass
        except OSError as e:
            raise BundleError(
                f"{path}, which has the weights of {bundle.root} for edge_kernels, cannot be made anew ({e.strerror}); "
                f"end what uses it, or set {VARIABLE}={OFF} to verify the bundle without these kernels."
            ) from None


def _sha256s(bundle: Bundle) -> dict[str, str]:
    return {file.path: file.sha256 for file in bundle.manifest.files}


def layout_of(matrix: Matrix, half: bool = False) -> Layout:
    """Storage format of a matrix. half: whether its scales are float16."""
    return Layout(matrix.bits, matrix.inputs, matrix.columns, matrix.block, half, matrix.zero_points is not None)


def _write(writer: PackedWriter, kernels: Kernels, stored: NDArray[np.uint8], matrices: Iterable[Matrix]) -> None:
    room_left = WIDENED * stored.size + PADDED
    for matrix in dict.fromkeys(matrices):
        if kept := writer.kept(matrix):
            room_left -= kept
            continue
        blocks = -(-matrix.inputs // matrix.block)
        scales = _part(stored, matrix.scales, matrix.columns * blocks * 4).view(np.float32)
        with np.errstate(over="ignore"):
            half = bool((scales.astype(np.float16) == scales).all())
        layout = layout_of(matrix, half)
        size = kernels.packed_bytes(layout)
        room_left -= size
        if not size or room_left < 0:
            raise OSError("the bundle's graphs ask for more than its weights")
        room = np.empty(size, np.uint8)
        weights = _part(stored, matrix.weights, matrix.columns * blocks * matrix.block * matrix.bits // 8)
        if matrix.by_rows:  # uint8 with the zero point 128
            weights = np.bitwise_xor(weights.reshape(matrix.inputs, matrix.columns).T, np.uint8(128)).copy()
        zeros = None
        if matrix.zero_points is not None:
            zeros = _part(stored, matrix.zero_points, matrix.columns * -(-blocks * matrix.bits // 8))
        kernels.pack(layout, weights, scales, zeros, room)
        with writer.matrix(matrix, half=half):
            writer.put(room.data)


def _part(stored: NDArray[Any], start: int, size: int) -> NDArray[np.uint8]:
    part = stored[start : start + size]
    if part.size != size:
        raise OSError("the bundle's weights are shorter than its graphs say")
    return part
