"""Files of packed weights in the cache folder: each is written once and mapped into memory from then on, so that a
second start, process or graph pays nothing.

`packed_writer` has their form. A damaged or incomplete file is written again. The crc32 is compared once, and
again where the file has changed since by its times, size or inode: a stamp in the cache folder records these.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import mmap
import os
import re
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from edge.errors import InputError
from edge.home import UNWRITABLE, cache_dir, drop_oldest, mark_used, open_own, read_own_json, replace_text
from edge.regular_file import identity_of
from edge.runtime.kernels.packed_writer import ALIGNMENT, END, MARK, PackedWriter, written
from edge.runtime.mapped_file import mapped_file
from edge.runtime.options import shown
from edge.runtime.sizes import parse_size

CACHE_SIZE = "EDGE_CACHE_SIZE"  # the environment variable for how much packed weights may take
ROOM = 20_000_000_000  # bytes of them all, unless that is more than this part of the disk
OF_DISK = 10
WORTH_SAYING = 50_000_000  # bytes
CURRENT = r"[0-9a-f]{32}-[0-9]+\.bin"
EARLIER = r"[0-9a-f]{16}-[0-9]+\.bin"  # of earlier versions of edge, which nothing reads any more

M = TypeVar("M")  # a frozen dataclass: the source of a matrix

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """Position of a packed matrix in the file, in bytes. half: whether its scales are float16."""

    start: int
    size: int
    half: bool = False


class PackedFile(Generic[M]):
    """A file of packed matrices, mapped into memory.

    Args:
        path: the file.
        kind: of its matrices' sources.
        stamp: remembers that its crc32 was compared.

    Raises:
        OSError: it cannot be read, or is no file of this user's.
        ValueError: it is not whole.
    """

    def __init__(self, path: Path, kind: type[M], stamp: Path | None = None) -> None:
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
        self.of, self._index = _read_index(self._bytes[end - length : end].tobytes(), end - length, kind)

    def place(self, matrix: M) -> Place | None:
        """Position of a matrix; None where the file lacks it."""
        return self._index.get(matrix)

    def bytes(self, matrix: M) -> NDArray[np.uint8]:
        """The bytes of a packed matrix."""
        place = self._index[matrix]
        return self._bytes[place.start : place.start + place.size]


def packed_file(
    path: Path,
    of: str,
    kind: type[M],
    fits: Callable[[PackedFile[M]], bool],
    write: Callable[[PackedWriter], None],
    sources: Sequence[Path],
    *,
    again: bool = True,
) -> PackedFile[M]:
    """The file at a path, made of what `of` identifies, which is in the files `sources`; where it does not fit, `write`
    writes it anew, or goes on where that was interrupted.

    again: let the system read what was written again, in the pages that it is mapped in, which is not worth it for
    large files.

    Raises:
        OSError: it can neither be read nor be written.
    """
    with contextlib.suppress(OSError, ValueError):
        found = PackedFile(path, kind, _stamp_of(path))
        if found.of == of and fits(found):
            return found

    def make(writer: PackedWriter) -> int:
        write(writer)
        return writer.end(of, again=again)

    try:
        with written(path, sources) as writer:
            checksum = make(writer)
    except OSError as e:
        if e.errno not in UNWRITABLE:
            raise
        found = _for_this_process(path, kind, make)
    else:
        _remember(_stamp_of(path), _stamp(path.stat(), checksum))
        _clean(path)
        try:
            found = PackedFile(path, kind, _stamp_of(path))
        except ValueError as e:
            raise OSError(f"{path} was written, and {e}") from None
    if found.of != of or not fits(found):
        raise OSError(f"{path} was written by another version of edge meanwhile")
    return found


def _for_this_process(path: Path, kind: type[M], make: Callable[[PackedWriter], int]) -> PackedFile[M]:
    """The matrices that belong at `path`, where nothing can be kept: in a file that ends with this process."""
    if (found := _unkept.get(path)) is None:
        with tempfile.TemporaryDirectory(prefix="edge-", ignore_cleanup_errors=True) as folder:
            place = Path(folder) / path.name
            with place.open("wb") as file, PackedWriter(file) as writer:
                make(writer)
            found = _unkept[path] = PackedFile(place, kind)
    return found


_unkept = weakref.WeakValueDictionary[Path, PackedFile[Any]]()  # by where they belong


def packed_dir() -> Path:
    """Return the folder of packed weights."""
    return cache_dir() / "packed"


def described(error: OSError) -> str:
    """Why packed weights cannot be written, with what to do on a full disk."""
    said = error.strerror or str(error)
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return said
    return f"{said} in {packed_dir()}; free some, or set EDGE_HOME to a folder elsewhere"


def packed_path(made_of: Iterable[str], version: int) -> Path:
    """Path of the file of packed matrices that these sources identify. version: of the format of matrices."""
    import hashlib  # brings OpenSSL, as in `edge.bundle`: sampling loads it too

    name = hashlib.sha256(" ".join(made_of).encode()).hexdigest()[:32]
    return packed_dir() / f"{name}-{version}.bin"


def _stamp_of(path: Path) -> Path:
    """Path of a file's stamp. It records that the file is complete and, by its own time, when the file was last used:
    the file's times do not change."""
    return cache_dir() / "checked" / f"{path.stem}.json"


def _stamp(found: os.stat_result, checksum: int) -> list[int]:
    """Identity of a file's content without reading it, with its checksum."""
    return [*identity_of(found), checksum]


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


def _read_index(text: bytes, end: int, kind: type[M]) -> tuple[str, dict[M, Place]]:
    """What the file was made of, and where its matrices lie, which is before `end`; ValueError where it is none."""
    try:
        raw = json.loads(text)
        of, rows = raw["weights"], raw["matrices"]
        index = {kind(*row[:-3]): Place(*row[-3:]) for row in rows}
    except (LookupError, RecursionError, TypeError) as e:
        raise ValueError("its index is none") from e
    last = 0
    for place in index.values():
        if type(place.start) is not int or type(place.size) is not int or type(place.half) is not bool:
            raise ValueError("its index has no numbers")
    for place in sorted(index.values(), key=lambda place: place.start):
        if place.start % ALIGNMENT or place.start < last or not 0 < place.size <= end - place.start:
            raise ValueError("its matrices do not lie one after the other")
        last = place.start + place.size
    return of, index
