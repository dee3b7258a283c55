"""GGUF files: header, metadata, table of tensors."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz.checkpoints import export_checkpoint, read_checkpoint
from fuzz.damage import NUMBERS, TEXTS, a_few, damaged_bytes, number

NAME = "gguf"
HELP = "GGUF files: header, metadata, tensors"
TRAITS = {"inputs": ("gguf",), "share": 2}
FILES = ("llama.gguf", "llama.gguf", "t5.gguf", "experts.gguf", "states.gguf")
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


def prepare(whole: Path) -> None:
    """Import what reads it: libraries are no part of a case's memory."""
    read_checkpoint(whole / "gguf" / "t5.gguf")


def make_case(choose: random.Random, whole: Path, place: Path) -> None:
    data = (whole / "gguf" / choose.choice(FILES)).read_bytes()
    kind = choose.random()
    if kind < 0.3:
        data = damaged_bytes(data, choose, choose.choice([900, 8000]))
    else:
        header = Header(data)
        for _ in range(a_few(choose)):
            choose.choice(WAYS)(header, choose)
        data = header.bytes()
    (place / "model.gguf").write_bytes(data)
    if choose.random() < 0.1:
        (place / "export").touch()


def try_one(place: Path) -> None:
    read_checkpoint(place / "model.gguf")
    if (place / "export").exists():
        export_checkpoint(place / "model.gguf", place)


class Header:
    """The parts of a file, each of which may be changed before they are written again."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 4
        self.version = self._take("I")
        tensors, pairs = self._take("Q"), self._take("Q")
        self.counts = [tensors, pairs]
        self.pairs = [[self._string(), kind := self._take("I"), self._value(kind)] for _ in range(pairs)]
        self.tensors = [
            [self._string(), [self._take("Q") for _ in range(self._take("I"))], self._take("I"), self._take("Q")]
            for _ in range(tensors)
        ]
        self.body = data[-(-self._at // 32) * 32 :]

    def bytes(self) -> bytes:
        parts = [b"GGUF", _scalar("I", self.version), *(_scalar("Q", count) for count in self.counts)]
        for key, kind, value in self.pairs:
            parts += [_string(key), _scalar("I", kind), _value(kind, value)]
        for name, shape, kind, offset in self.tensors:
            parts += [_string(name), _scalar("I", len(shape)), *(_scalar("Q", size) for size in shape)]
            parts += [_scalar("I", kind), _scalar("Q", offset)]
        written = b"".join(parts)
        return written + bytes(-len(written) % 32) + self.body

    def _take(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self._data, self._at)
        self._at += struct.calcsize(f"<{code}")
        return value

    def _string(self) -> bytes:
        length = self._take("Q")
        self._at += length
        return self._data[self._at - length : self._at]

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            inner, count = self._take("I"), self._take("Q")
            return inner, [self._value(inner) for _ in range(count)]
        return self._take(SCALARS[kind])


def _scalar(code: str, value: Any) -> bytes:
    if code in "fd":
        return struct.pack(f"<{code}", max(-3e38, min(3e38, value)) if value == value else value)
    if code == "?":
        return struct.pack("<B", int(value) & 255)
    size = struct.calcsize(code)
    return (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _string(text: bytes) -> bytes:
    return _scalar("Q", len(text)) + text


def _value(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return _string(value if isinstance(value, bytes) else str(value).encode(errors="replace"))
    if kind == ARRAY:
        inner, values = value if isinstance(value, tuple) else (4, [value])
        return _scalar("I", inner) + _scalar("Q", len(values)) + b"".join(_value(inner, each) for each in values)
    if isinstance(value, bytes | tuple):
        value = len(value)
    return _scalar(SCALARS[kind], value)


def _text(choose: random.Random) -> bytes:
    return choose.choice([choose.choice(TEXTS).encode(errors="replace"), b"\xff\xfe", choose.randbytes(5)])


def _counts(header: Header, choose: random.Random) -> None:
    header.counts[choose.randrange(2)] = number(choose, 12)


def _metadata(header: Header, choose: random.Random) -> None:
    """A value of another size, of another type, missing, or there twice."""
    pair = choose.choice(header.pairs)
    kind = choose.random()
    if kind < 0.1:
        header.pairs.remove(pair)
        header.counts[1] -= 1
    elif kind < 0.2:
        header.pairs.append(list(pair))
        header.counts[1] += 1
    elif kind < 0.3:
        pair[0] = _text(choose)
    elif kind < 0.45:
        scalars = [kind for kind in SCALARS if not isinstance(pair[2], bytes | tuple)]
        pair[1] = choose.choice([*scalars, STRING, ARRAY])
    elif isinstance(pair[2], tuple):
        inner, values = pair[2]
        pair[2] = inner, _changed(values, choose)
    elif isinstance(pair[2], bytes):
        pair[2] = _text(choose)
    elif isinstance(pair[2], float):
        pair[2] = choose.choice([0.0, -1.0, 1e38, 1e-40, float("nan"), float("inf")])
    else:
        pair[2] = number(choose, int(pair[2]))


def _changed(values: list[Any], choose: random.Random) -> list[Any]:
    values = list(values)
    kind = choose.random()
    if not values:
        return values
    if kind < 0.2:
        return values[: choose.randrange(len(values))]
    if kind < 0.4:
        return values * 2
    at = choose.randrange(len(values))
    if isinstance(values[at], bytes):
        values[at] = choose.choice([_text(choose), choose.choice(values)])
    else:
        values[at] = choose.choice(NUMBERS)
    return values


def _tensor(header: Header, choose: random.Random) -> None:
    tensor = choose.choice(header.tensors)
    kind = choose.random()
    if kind < 0.35:
        shape = tensor[1]
        if shape and choose.random() < 0.7:
            i = choose.randrange(len(shape))
            shape[i] = number(choose, shape[i])
        elif choose.random() < 0.5:
            shape.append(choose.choice([1, *NUMBERS]))
        elif shape:
            shape.pop()
    elif kind < 0.55:
        tensor[2] = choose.choice([*range(42), 1 << 31])
    elif kind < 0.75:
        tensor[3] = number(choose, tensor[3])
    elif kind < 0.85:
        tensor[0] = choose.choice([_text(choose), choose.choice(header.tensors)[0]])
    else:
        header.tensors.remove(tensor)
        header.counts[0] -= 1


def _body(header: Header, choose: random.Random) -> None:
    header.body = damaged_bytes(header.body, choose)


WAYS: list[Callable[[Header, random.Random], None]] = [
    *(_counts, _metadata, _metadata, _metadata, _metadata, _tensor, _tensor, _tensor, _body)
]
