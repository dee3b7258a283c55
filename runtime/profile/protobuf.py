"""Protocol Buffers' wire format, as far as an ONNX file needs it: the runtime has no package for it.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

Message = dict[int, list[Any]]


class WireError(ValueError):
    """The bytes are no message."""


def fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The number and value of each field of a message: an integer, or the bytes of a string, message or packed list.

    Raises:
        WireError: the bytes end within a field, or hold an unknown kind of field.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        size = {FIXED64: 8, FIXED32: 4}.get(kind)
        if kind == BYTES:
            size, at = _varint(data, at)
        if size is None or at + size > len(data):
            raise WireError(f"field {number} of kind {kind} at byte {at} does not end")
        yield number, data[at : at + size]
        at += size


def parsed(data: bytes | memoryview) -> Message:
    """The values of a message by the number of their field, an empty list for one that it lacks."""
    found: Message = defaultdict(list)
    for number, value in fields(memoryview(data)):
        found[number].append(value)
    return found


def integers(value: int | memoryview) -> Iterator[int]:
    """The numbers of one field of a repeated integer, which are single or packed together."""
    if isinstance(value, int):
        yield value
        return
    at = 0
    while at < len(value):
        number, at = _varint(value, at)
        yield number


def text(values: list[Any]) -> str:
    """A string field's text; empty where the message lacks it."""
    return bytes(values[-1]).decode("utf-8", "replace") if values else ""


def field(number: int, *value: int | str | bytes) -> bytes:
    """One encoded field: a non-negative integer, a string, or bytes: those of a message are its encoded fields."""
    if isinstance(value[0], int):
        return _encode(number << 3 | VARINT) + _encode(value[0])
    data = b"".join(part.encode() if isinstance(part, str) else part for part in value if not isinstance(part, int))
    return _encode(number << 3 | BYTES) + _encode(len(data)) + data


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise WireError(f"a number at byte {at} does not end")


def _encode(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
