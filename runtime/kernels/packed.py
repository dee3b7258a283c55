"""Weights in the layout of our kernels: a file in the cache folder that is written once and mapped into memory from
then on, so that a second start, process or graph pays nothing.

The file is named by its sources: the weights and all graphs of a bundle, by their sha256s, and the format. It has the
matrices one after the other, an index as JSON with the full source of each, the length of the index, the crc32 of
everything before, and a mark. A damaged or incomplete file is written again. The crc32 is compared once, and again
where the file has changed since by its times, size or inode: a stamp in the cache folder records these.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import re
import shutil
import struct
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from edge.bundle import WEIGHTS, Bundle
from edge.errors import BundleError, InputError
from edge.home import UNWRITABLE, cache_dir, drop_oldest, mark_used, open_own, read_own_json, replace_text, replacing
from edge.runtime.kernels.library import OFF, VARIABLE, Kernels, Layout, find_kernels
from edge.runtime.mapped_file import mapped_file, unchanged
from edge.runtime.options import shown
from edge.runtime.sizes import parse_size

MARK = b"edge packed weights\n"
END = struct.Struct(f"<QI{len(MARK)}s")
ALIGNMENT = 64
CACHE_SIZE = "EDGE_CACHE_SIZE"  # the environment variable for how much packed weights may take
ROOM = 20_000_000_000  # bytes of them all, unless that is more than this part of the disk
OF_DISK = 10
WORTH_SAYING = 50_000_000  # bytes
CURRENT = r"[0-9a-f]{32}-[0-9]+\.bin"
EARLIER = r"[0-9a-f]{16}-[0-9]+\.bin"  # of earlier versions of edge, which nothing reads any more
WIDENED = 2  # what packing may make of weights, by their bytes; the kernels' layout has at most 1.2 times as many
PADDED = 64 << 20  # bytes by which small matrices may be padded


_log = logging.getLogger(__name__)


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


@dataclass(frozen=True)
class Place:
    """Position of a packed matrix in the file, in bytes. half: whether its scales are float16."""

    start: int
    size: int
    half: bool


class PackedWeights:
    """A file of packed matrices, mapped into memory.

    Args:
        path: the file.
        stamp: remembers that its crc32 was compared.

    Raises:
        OSError: it cannot be read, or is no file of this user's.
        ValueError: it is not whole.
    """

    def __init__(self, path: Path, stamp: Path | None = None) -> None:
        self._bytes, found = _mapped(path)
        self.file = mapped_file(path, "load the model again")
        end = len(self._bytes) - END.size
        length, checksum, mark = END.unpack(self._bytes[end:].tobytes())
        if mark != MARK or length > end:
            raise ValueError("it was cut short")
        seen = _stamp(found, checksum)
        if stamp is not None and read_own_json(stamp) == seen:
            mark_used(stamp)
        else:
            if zlib.crc32(self._bytes[:end].data) != checksum:
                raise ValueError("its checksum is another one")
            if stamp is not None:
                _remember(stamp, seen)
        self._of, self._index = _read_index(self._bytes[end - length : end].tobytes(), end - length)

    def has(self, matrices: Iterable[Matrix], of: str, kernels: Kernels) -> bool:
        """True if all of these matrices are in the file, packed from the weights with this sha256."""
        places = [(matrix, self._index.get(matrix)) for matrix in matrices]
        return self._of == of and all(
            place is not None and place.size == kernels.packed_bytes(layout_of(matrix, place.half))
            for matrix, place in places
        )

    def matrix(self, matrix: Matrix) -> tuple[NDArray[np.uint8], Layout]:
        """The bytes of a packed matrix, and their layout."""
        place = self._index[matrix]
        return self._bytes[place.start : place.start + place.size], layout_of(matrix, place.half)


def packed_weights(
    bundle: Bundle, kernels: Kernels, wanted: Iterable[Matrix], everything: Callable[[], Iterable[Matrix]]
) -> PackedWeights:
    """The packed matrices of a bundle. Where the cache lacks some that are wanted, `everything` is packed.

    Raises:
        OSError: they can neither be read nor be written.
    """
    path, weights = packed_file(bundle, kernels), _sha256s(bundle)[WEIGHTS]
    wanted = list(wanted)
    with contextlib.suppress(OSError, ValueError):
        found = PackedWeights(path, _stamp_of(path))
        if found.has(wanted, weights, kernels):
            return found

    def write(place: Path) -> int:
        with unchanged([mapped_file(bundle.path(WEIGHTS))]):
            return _write(place, kernels, np.memmap(bundle.path(WEIGHTS), np.uint8, "r"), everything(), weights)

    try:
        with replacing(path) as part:
            checksum = write(part)
    except OSError as e:
        if e.errno not in UNWRITABLE:
            raise
        found = _for_this_process(path, write)
    else:
        _remember(_stamp_of(path), _stamp(path.stat(), checksum))
        _clean(path)
        try:
            found = PackedWeights(path, _stamp_of(path))
        except ValueError as e:
            raise OSError(f"{path} was written, and {e}") from None
    if not found.has(wanted, weights, kernels):
        raise OSError(f"{path} was written by another version of edge meanwhile")
    return found


def _for_this_process(path: Path, write: Callable[[Path], int]) -> PackedWeights:
    """The matrices that belong at `path`, where nothing can be kept: in a file that ends with this process."""
    if (found := _unkept.get(path)) is None:
        with tempfile.TemporaryDirectory(prefix="edge-", ignore_cleanup_errors=True) as folder:
            place = Path(folder) / path.name
            write(place)
            found = _unkept[path] = PackedWeights(place)
    return found


_unkept = weakref.WeakValueDictionary[Path, PackedWeights]()  # by where they belong


def packed_file(bundle: Bundle, kernels: Kernels) -> Path:
    """Path of a bundle's packed matrices. Other weights, graphs or formats have other files."""
    import hashlib  # brings OpenSSL, as in `edge.bundle`: sampling loads it too

    files = _sha256s(bundle)
    made_of = [files[WEIGHTS], *sorted({files[graph.path] for graph in bundle.manifest.graphs})]
    name = hashlib.sha256(" ".join(made_of).encode()).hexdigest()[:32]
    return cache_dir() / "packed" / f"{name}-{kernels.version}.bin"


def forget_packed(bundle: Bundle) -> None:
    """Remove the packed matrices of a bundle, so that the next use packs them again from its files.

    Raises:
        BundleError: the file stays.
    """
    kernels = find_kernels()
    if kernels is None:
        return
    path = packed_file(bundle, kernels)
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except NotADirectoryError:
        pass
    except OSError as e:
        raise BundleError(
            f"{path}, which has the weights of {bundle.root} for edge_kernels, cannot be made anew ({e.strerror}); end "
            f"what uses it, or set {VARIABLE}={OFF} to verify the bundle without these kernels."
        ) from None


def _sha256s(bundle: Bundle) -> dict[str, str]:
    return {file.path: file.sha256 for file in bundle.manifest.files}


def _stamp_of(path: Path) -> Path:
    """Path of a file's stamp. It records that the file is complete and, by its own time, when the file was last used:
    the file's times do not change."""
    return cache_dir() / "checked" / f"{path.stem}.json"


def _stamp(found: os.stat_result, checksum: int) -> list[int]:
    """Identity of a file's content without reading it, with its checksum."""
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, checksum]


def _remember(stamp: Path, seen: list[int]) -> None:
    with contextlib.suppress(OSError):  # then it is compared again
        replace_text(stamp, json.dumps(seen))


def _clean(made: Path) -> None:
    """Make room for a file that was just made, and say that it is there."""
    if (size := made.stat().st_size) >= WORTH_SAYING:
        _log.info("%.0f MB of weights are packed for faster starts and kept as %s (see edge list).", size / 1e6, made)
    with contextlib.suppress(OSError):
        for entry in made.parent.iterdir():
            if re.fullmatch(EARLIER, entry.name):
                entry.unlink()
    drop_oldest(made.parent, made=made, room=room(made.parent), ours=partial(re.fullmatch, CURRENT), used=_stamp_of)


def room(folder: Path) -> int:
    """Bytes that the packed weights in a folder may take in all: `EDGE_CACHE_SIZE`; default: 20 GB, or a tenth of the
    disk where that is less. The latest file stays, whatever it has.

    Raises:
        InputError: `EDGE_CACHE_SIZE` is no amount.
    """
    given = os.environ.get(CACHE_SIZE)
    if not given:
        return min(ROOM, shutil.disk_usage(folder).total // OF_DISK)
    try:
        return parse_size(given)
    except InputError:
        raise InputError(f"{CACHE_SIZE} is {shown(given)}, which is no amount of bytes; write it like 20GB.") from None


def _mapped(path: Path) -> tuple[NDArray[np.uint8], os.stat_result]:
    """A file, in pages of 2 MiB where the system maps files so: two threads of an AMD EPYC read 50 GB/s of these, and
    26 GB/s of pages of 4 KiB (Linux 6.18, ext4)."""
    with open_own(path) as file:
        found = os.fstat(file.fileno())
        if found.st_size < END.size:
            raise ValueError("it was cut short")
        memory = mmap.mmap(file.fileno(), found.st_size, access=mmap.ACCESS_READ)
    with contextlib.suppress(AttributeError, OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8), found


def _read_index(text: bytes, end: int) -> tuple[str, dict[Matrix, Place]]:
    """The sha256 of the weights, and where their matrices lie, which is before `end`; ValueError where it is none."""
    try:
        raw = json.loads(text)
        of, rows = raw["weights"], raw["matrices"]
        index = {Matrix(*row[:-3]): Place(*row[-3:]) for row in rows}
    except (LookupError, RecursionError, TypeError) as e:
        raise ValueError("its index is none") from e
    for matrix, place in index.items():
        numbers = (matrix.bits, matrix.inputs, matrix.columns, matrix.block, place.start, place.size)
        if any(type(number) is not int or number < 0 for number in numbers) or type(place.half) is not bool:
            raise ValueError("its index has no numbers")
    last = 0
    for place in sorted(index.values(), key=lambda place: place.start):
        if place.start % ALIGNMENT or place.start < last or not 0 < place.size <= end - place.start:
            raise ValueError("its matrices do not lie one after the other")
        last = place.start + place.size
    return of, index


def _forget(file: BinaryIO) -> None:
    """Let the system keep nothing of a file that was written: it is read again in the pages that it is mapped in."""
    file.flush()
    os.fsync(file.fileno())
    with contextlib.suppress(AttributeError, OSError):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def layout_of(matrix: Matrix, half: bool = False) -> Layout:
    """Storage format of a matrix. half: whether its scales are float16."""
    return Layout(matrix.bits, matrix.inputs, matrix.columns, matrix.block, half, matrix.zero_points is not None)


def _write(path: Path, kernels: Kernels, stored: NDArray[np.uint8], matrices: Iterable[Matrix], of: str) -> int:
    """Pack matrices of the weights with this sha256 into a file. Returns the crc32 of all before its end."""
    index, room_left, checksum = list[tuple[Any, ...]](), WIDENED * stored.size + PADDED, 0
    with path.open("wb") as file:

        def put(content: Any) -> None:
            nonlocal checksum
            checksum = zlib.crc32(content, checksum)
            file.write(content)

        for matrix in dict.fromkeys(matrices):
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
            put(bytes(-file.tell() % ALIGNMENT))
            index.append((*astuple(matrix), file.tell(), room.size, half))
            put(room.data)
        named = json.dumps({"weights": of, "matrices": index}).encode()
        put(named)
        file.write(END.pack(len(named), checksum, MARK))
        _forget(file)
    return checksum


def _part(stored: NDArray[Any], start: int, size: int) -> NDArray[np.uint8]:
    part = stored[start : start + size]
    if part.size != size:
        raise OSError("the bundle's weights are shorter than its graphs say")
    return part
