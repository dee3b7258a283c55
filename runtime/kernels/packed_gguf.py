"""Matrices of GGUF files in the layout of our kernels: integers and scales of the file, in another order.

They are packed once, in all threads, from a file that is read piece by piece: private memory holds a few pieces and
the heads of one matrix, whatever the size of the model.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from io import FileIO
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from edge.bundle import WEIGHTS, Bundle, sha256_of
from edge.errors import BundleError
from edge.external_file import changed, stamp
from edge.regular_file import open_regular
from edge.runtime.kernels.library import GgufLayout, Kernels
from edge.runtime.kernels.packed_file import PackedFile, packed_file, packed_path
from edge.runtime.kernels.packed_writer import PackedWriter

PIECE = 8 << 20  # bytes of a file that a thread packs at a time
THREADS = 4  # at most: a disk gives no more
WAITING = 2  # pieces of each thread that are read before they are written
LARGEST_HEAD = 1 << 12  # rows of a head at most

PACKING = "packing weights"  # what this is called where its progress is shown

Progress = Callable[[int, int], None]  # is told how many bytes of all are packed


@dataclass(frozen=True)
class GgufMatrix:
    """A matrix of a GGUF file, or of `weights.bin` in the same form.

    location: `weights.bin`, or `external.` and the number of a file outside of the bundle. start, row: bytes before it
    and of a row. heads: how many heads the rows are of, whose two halves lie in turns in the file; 0: rows are in their
    order.
    """

    location: str
    start: int
    row: int
    type: int
    inputs: int
    columns: int
    heads: int

    @property
    def layout(self) -> GgufLayout:
        return GgufLayout(self.type, self.inputs, self.columns)

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self.row * self.columns


def packed_gguf(
    bundle: Bundle, kernels: Kernels, wanted: Iterable[GgufMatrix], progress: Progress | None = None
) -> PackedFile[GgufMatrix]:
    """The packed matrices of a bundle. Where the cache lacks some that are wanted, all of these are packed.

    Raises:
        OSError: they can neither be read nor be written.
        BundleError: a file outside of the bundle has changed, or a matrix has a scale or a weight that is no number.
    """
    matrices = list(dict.fromkeys(wanted))

    def fits(found: PackedFile[GgufMatrix]) -> bool:
        return all(
            (place := found.place(each)) is not None and place.size == kernels.gguf_bytes(each.layout)
            for each in matrices
        )

    def write(writer: PackedWriter) -> None:
        bundle.check_external()
        _write(writer, bundle, kernels, matrices, progress)
        if bundle.manifest.external and _identity(bundle) != identity:
            raise changed(bundle.manifest.external[0])

    identity = _identity(bundle)
    sources = [_file(bundle, location) for location in sorted({matrix.location for matrix in matrices})]
    return packed_file(_path(identity, kernels), " ".join(identity), GgufMatrix, fits, write, sources, again=False)


def gguf_path(bundle: Bundle, kernels: Kernels) -> Path:
    """Path of a bundle's packed matrices of GGUF files."""
    return _path(_identity(bundle), kernels)


def _path(identity: list[str], kernels: Kernels) -> Path:
    return packed_path(["gguf", *identity], kernels.version)


def _identity(bundle: Bundle) -> list[str]:
    if external := bundle.manifest.external:
        return [stamp(file) for file in external]
    listed = [file.sha256 for file in bundle.manifest.files if file.path == WEIGHTS]
    if listed:
        return listed
    path = bundle.path(WEIGHTS)  # of a bundle that is being written
    found = path.stat()
    return [_sha256(path, found.st_size, found.st_mtime_ns)]


@lru_cache(2)
def _sha256(path: Path, size: int, modified_ns: int) -> str:
    """The sha256 of a file, which is read once while nobody changes it: an export asks several times."""
    return sha256_of(path)


def _file(bundle: Bundle, location: str) -> Path:
    """The file that matrices with this location lie in."""
    external = bundle.external.get(location)
    return bundle.file(location) if external is None else Path(external.path)


class _Reader:
    """The files that matrices lie in, opened once."""

    def __init__(self, bundle: Bundle, stack: ExitStack) -> None:
        self._bundle, self._stack, self._lock = bundle, stack, Lock()
        self._files = dict[str, FileIO]()

    def read(self, location: str, start: int, into: NDArray[np.uint8]) -> None:
        """Fill an array. OSError where the file ends before."""
        file = self._opened(location)
        view, done = into.reshape(-1).data, 0
        while done < len(view):
            if hasattr(os, "preadv"):
                size = os.preadv(file.fileno(), [view[done:]], start + done)
            else:
                with self._lock:
                    file.seek(start + done)
                    size = file.readinto(view[done:]) or 0
            if not size:
                raise OSError(0, f"{self.path(location)} ends before the weights that a graph looks for")
            done += size

    def _opened(self, location: str) -> FileIO:
        with self._lock:
            if location not in self._files:
                self._files[location] = self._stack.enter_context(open_regular(self.path(location)))
            return self._files[location]

    def path(self, location: str) -> Path:
        return _file(self._bundle, location)


def _write(
    writer: PackedWriter, bundle: Bundle, kernels: Kernels, matrices: list[GgufMatrix], progress: Progress | None
) -> None:
    threads, total, done = min(os.cpu_count() or 1, THREADS), sum(matrix.size for matrix in matrices), 0
    there = bundle.size(WEIGHTS) + sum(file.size for file in bundle.manifest.external)
    if total > there:  # which a graph could ask for by reading the same bytes in many ways
        raise OSError("the bundle's graphs ask for more than its weights")
    with ExitStack() as stack, ThreadPoolExecutor(threads) as pool:
        reader = _Reader(bundle, stack)
        for matrix in matrices:
            if writer.kept(matrix):
                done += matrix.size
                if progress is not None:
                    progress(done, total)
                continue
            heads = list[NDArray[np.uint8]]()
            with writer.matrix(matrix):
                for weights, own in _in_turn(_pieces(pool, reader, kernels, matrix), threads * WAITING):
                    writer.put(weights.data)
                    heads.append(own)
                    done += weights.size + own.size
                    if progress is not None:
                        progress(min(done, total), total)
                for each in heads:
                    writer.put(each.data)


Packed = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def _in_turn(pieces: Iterator[Future[Packed]], ahead: int) -> Iterator[Packed]:
    """The results of tasks in their order, of which so many are begun before they are taken."""
    begun = deque[Future[Packed]]()
    for piece in pieces:
        begun.append(piece)
        if len(begun) > ahead:
            yield begun.popleft().result()
    while begun:
        yield begun.popleft().result()


def _pieces(
    pool: ThreadPoolExecutor, reader: _Reader, kernels: Kernels, matrix: GgufMatrix
) -> Iterator[Future[Packed]]:
    panel = kernels.gguf_panel(matrix.layout)
    assert panel is not None and panel.row == matrix.row
    unit = panel.columns  # rows that are packed together, or a multiple of these
    if matrix.heads:
        head = matrix.columns // matrix.heads
        if matrix.columns % matrix.heads or head % 2 or head % panel.columns or head > LARGEST_HEAD:
            raise OSError(f"{matrix.columns} rows are not those of {matrix.heads} heads")
        unit = head
    rows = max(1, PIECE // (unit * matrix.row)) * unit

    def pack(first: int) -> Packed:
        count = min(rows, matrix.columns - first)
        raw = np.empty((count, matrix.row), np.uint8)
        reader.read(matrix.location, matrix.start + first * matrix.row, raw)
        if matrix.heads:  # [heads, half, 2] to [heads, 2, half]
            raw = np.ascontiguousarray(raw.reshape(-1, unit // 2, 2, matrix.row).swapaxes(1, 2)).reshape(count, -1)
        panels = -(-count // panel.columns)
        made = np.empty(panels * panel.weights, np.uint8), np.empty(panels * panel.heads, np.uint8)
        if not kernels.pack_gguf(matrix.layout, raw, *made):
            raise BundleError(
                f"A matrix of {matrix.columns} rows at byte {matrix.start} of {reader.path(matrix.location)} has "
                "scales or weights that are no numbers, of which no answer can be computed; fetch the file again, or "
                "use another."
            )
        return made

    return (pool.submit(pack, first) for first in range(0, matrix.columns, rows))
