"""The header of a GGUF file: metadata and the table of tensors.

`gguf.GGUFReader` makes several numpy objects for every string, which costs two seconds and 100 MB for a vocabulary of
49,152 tokens; this reads the same header in a tenth of a second, and notices a file that ends too early.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from edge.errors import CheckpointError
from edge.export.facts.checkpoint import mapped
from edge.gguf_parts import parts_of

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
MAX_HEADER = 1 << 26  # bytes: those of 262,144 tokens with their merges take 12 MB
MOST = 1 << 16  # keys, or tensors
_RANK = 4  # the most dimensions of a tensor, ggml's GGML_MAX_DIMS
_KINDS = {
    int: ("a whole number", "whole numbers"),
    float: ("a finite number", "finite numbers"),
    str: ("a text", "texts"),
    bool: ("true or false", "truth values"),
}

T = TypeVar("T", int, float, str, bool)


@dataclass(frozen=True)
class TensorInfo:
    """A tensor's place in the file. `shape` is in numpy's order: rows first."""

    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int  # from the start of the file
    size: int  # bytes


class GGUFHeader:
    """Metadata and tensors of one GGUF file, whose data stays memory-mapped. The first of the files that a model is
    split into holds the metadata; `join` adds the tensors of the others.

    Raises:
        CheckpointError: not GGUF, another version or byte order, cut short, or a tensor type nobody knows.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path} is not a file; name a .gguf file or a model directory.")
        try:
            self._file = mapped(path)
            with path.open("rb") as f:
                if f.read(4) != b"GGUF":
                    raise CheckpointError(f"{path} is not a GGUF file: it does not begin with the letters GGUF.")
                self._data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as e:
            raise CheckpointError(f"{path} cannot be read: {e.strerror}.") from None
        self._at, self._end = 4, min(len(self._data), MAX_HEADER)
        self._joined: dict[str, GGUFHeader] = {}  # by tensor
        self.files = [path]
        try:
            self.metadata, self.tensors = self._parse()
        except (struct.error, IndexError, UnicodeDecodeError):
            beyond = f", or goes on after {MAX_HEADER:,}" if len(self._data) > MAX_HEADER else ""
            raise CheckpointError(
                f"{path} is damaged or cut short: its header breaks off at byte {self._at}{beyond}; fetch it again."
            ) from None

    def value(self, key: str, kind: type[T]) -> T | None:
        """The metadata's value of a key, or None where it has none.

        Raises:
            CheckpointError: it is of another kind.
        """
        value = self.metadata.get(key)
        if value is None or _is(value, kind):
            return value
        raise CheckpointError(
            f"{self.path} is damaged: {key} must be {_KINDS[kind][0]}, not {_shown(value)}; fetch it again."
        )

    def values(self, key: str, kind: type[T]) -> list[T]:
        """The metadata's list of a key; empty where it has none.

        Raises:
            CheckpointError: it is no list, or a member is of another kind.
        """
        values: Any = self.metadata.get(key, [])
        if isinstance(values, list):
            exact = kind is not float and {*map(type, values)} <= {kind}  # fast, for a vocabulary of 151,936 tokens
            if exact or all(_is(value, kind) for value in values):
                return list[T](values)
        raise CheckpointError(f"{self.path} is damaged: {key} must be a list of {_KINDS[kind][1]}; fetch it again.")

    def raw(self, name: str) -> NDArray[np.uint8]:
        """A tensor's bytes: [..., bytes of one row] uint8, a view into the mapped file."""
        if name in self._joined:
            return self._joined[name].raw(name)
        self._file.check()
        info = self.tensors[name]
        flat = np.frombuffer(self._data, dtype=np.uint8, count=info.size, offset=info.offset)
        return flat.reshape(*info.shape[:-1], -1)

    def join(self, part: GGUFHeader) -> None:
        """Add another part's tensors."""
        self.tensors |= part.tensors
        self._joined |= dict.fromkeys(part.tensors, part)
        self.files.append(part.path)

    def part_of(self, name: str) -> int:
        """The number of the file, among `files`, that has a tensor."""
        return self.files.index(self._joined[name].path) if name in self._joined else 0

    def _parse(self) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
        version = self._scalar("I")
        if version not in _VERSIONS:
            raise CheckpointError(f"{self.path} is {_described(version)}; versions 2 and 3 in little-endian are read.")
        tensor_count, pair_count = self._scalar("Q"), self._scalar("Q")
        for count, what in ((tensor_count, "tensors"), (pair_count, "keys")):
            if count > MOST:
                raise CheckpointError(
                    f"{self.path} is damaged: it names {count:,} {what}, and no model has more than {MOST:,}; fetch it "
                    "again."
                )
        metadata: dict[str, Any] = {}
        for _ in range(pair_count):
            key = self._string()
            metadata[key] = self._value(self._scalar("I"))
        infos = [self._tensor_info() for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", 32)
        if not _is(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise CheckpointError(
                f"{self.path} is damaged: general.alignment is {_shown(alignment)} and no power of two; fetch it again."
            )
        start = -(-self._at // alignment) * alignment
        tensors, expected = {}, 0
        for name, shape, kind, offset in infos:
            info = self._place(name, shape, kind, start + offset)
            if name in tensors:
                raise CheckpointError(f"{self.path} is damaged: it has two tensors {name!r}; fetch it again.")
            if offset != expected:  # tensors stand one after the other, as llama.cpp asks for too
                raise CheckpointError(
                    f"{self.path} is damaged: the tensor {name!r} begins at byte {info.offset}, where "
                    f"{start + expected} is expected; fetch it again."
                )
            if info.offset + info.size > len(self._data):
                raise CheckpointError(
                    f"{self.path} is cut short: the tensor {name!r} ends at byte {info.offset + info.size}, "
                    f"the file at {len(self._data)}; fetch it again."
                )
            expected = -(-(offset + info.size) // alignment) * alignment
            tensors[name] = info
        return metadata, tensors

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        rank = self._scalar("I")
        if rank > _RANK:
            raise IndexError
        shape = tuple(self._scalar("Q") for _ in range(rank))
        return name, shape[::-1], self._scalar("I"), self._scalar("Q")

    def _place(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> TensorInfo:
        try:
            type_ = GGMLQuantizationType(kind)
        except ValueError:
            raise CheckpointError(
                f"{self.path}: the tensor {name!r} has the type number {kind}, which the gguf library does not know."
            ) from None
        per_block, block_bytes = GGML_QUANT_SIZES[type_]
        if not shape or shape[-1] % per_block:
            raise CheckpointError(f"{self.path}: rows of the tensor {name!r} {shape} are no whole {type_.name} blocks.")
        return TensorInfo(shape, type_, offset, math.prod(shape) // per_block * block_bytes)

    def _scalar(self, code: str) -> Any:
        size = struct.calcsize(f"<{code}")
        if self._at + size > self._end:
            raise IndexError
        (value,) = struct.unpack_from(f"<{code}", self._data, self._at)
        self._at += size
        return value

    def _string(self) -> str:
        length = self._scalar("Q")
        if self._at + length > self._end:
            raise IndexError
        self._at += length
        return self._data[self._at - length : self._at].decode()

    def _strings(self, count: int) -> list[str]:
        """So many texts, one after the other."""
        data, at, end, found = self._data, self._at, self._end, list[str]()
        length_at = struct.Struct("<Q").unpack_from
        for _ in range(count):
            if at + 8 > end:
                self._at = at
                raise IndexError
            (length,) = length_at(data, at)
            at += 8
            if length > end - at:
                self._at = at
                raise IndexError
            found.append(data[at : at + length].decode())
            at += length
        self._at = at
        return found

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(self._code(kind))
        item, count = self._scalar("I"), self._scalar("Q")
        if item == _STRING:
            return self._strings(count)
        code = self._code(item)
        width = struct.calcsize(f"<{code}")
        if self._at + count * width > self._end:
            raise IndexError
        values = np.frombuffer(self._data, f"<{code}", count, self._at).tolist()
        self._at += count * width
        return values

    def _code(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise IndexError
        return _SCALARS[kind]


def open_gguf(path: Path) -> GGUFHeader:
    """The header of a file, or of the model that the file is any part of, with the tensors of all parts.

    Raises:
        CheckpointError: a file cannot be read, or parts are missing or do not belong together.
    """
    header = GGUFHeader(path)
    count = header.value("split.count", int) or 1
    if count == 1:
        return header
    files = parts_of(path)
    if len(files) != count:
        raise CheckpointError(
            f"{path} is one of {count} parts of a model; name it as llama.cpp does, NAME-00001-of-{count:05d}.gguf for "
            "the first, and put the others next to it."
        )
    if missing := [file.name for file in files if not file.exists()]:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(
            f"{path} is one of {count} parts of a model, of which {missing[0]}{more} cannot be found; fetch all into "
            "one folder."
        )
    first, *others = parts = [header if file == path else GGUFHeader(file) for file in files]
    for number, part in enumerate(parts):
        if (part.value("split.no", int), part.value("split.count", int)) != (number, count):
            raise CheckpointError(f"{part.path} is not part {number + 1} of {count}, as its name says; fetch it again.")
    for part in others:
        first.join(part)
    expected = first.value("split.tensors.count", int)
    if expected is not None and expected != len(first.tensors):
        raise CheckpointError(
            f"The {count} parts of {first.path} hold {len(first.tensors)} tensors, and {expected} are expected; fetch "
            "them again."
        )
    return first


def _described(version: int) -> str:
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    return f"big-endian (GGUF version {swapped})" if swapped < version else f"GGUF version {version}"


def _is(value: Any, kind: type) -> bool:
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if kind is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, kind)


def _shown(value: Any) -> str:
    return "a list" if isinstance(value, list) else repr(value)[:60]
