"""Protocol Buffers' wire format, as far as an ONNX file needs it: the runtime has no package that reads one.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class WireError(ValueError):
    """The bytes are no message."""


def fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The number and value of each field of a message: an integer, or the bytes of a string, message or packed list.

    Raises:
        WireError: the bytes end within a field, or hold a kind of field that there is not.
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


def integers(value: int | memoryview) -> Iterator[int]:
    """The numbers of one field of a repeated integer, which stand alone or packed together."""
    if isinstance(value, int):
        yield value
        return
    at = 0
    while at < len(value):
        number, at = _varint(value, at)
        yield number


def text(value: int | memoryview) -> str:
    """A string field's text."""
    if isinstance(value, int):
        raise WireError(f"a number, {value}, where a string should be")
    return bytes(value).decode("utf-8", "replace")


def message(*parts: bytes) -> bytes:
    """A message of encoded fields."""
    return b"".join(parts)


def field(number: int, value: int | str | bytes | memoryview) -> bytes:
    """One encoded field: a non-negative integer, a string, or the bytes of a message."""
    if isinstance(value, int):
        return _encode(number << 3 | VARINT) + _encode(value)
    data = value.encode() if isinstance(value, str) else value
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
