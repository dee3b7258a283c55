"""Damage to bytes, texts and JSON values, drawn with a random generator of the case's own."""

from __future__ import annotations

import copy
import json
import random
import re
import struct
from collections.abc import Callable
from typing import Any

NUMBERS = [0, 1, 2, 7, 127, 255, 256, 65535, 1 << 16, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62,
           (1 << 63) - 1, 1 << 63, (1 << 64) - 1]  # fmt: skip
TEXTS = [
    *(
        "",
        " ",
        "x",
        "1",
        "é\0",
        "\0",
        "\x1b[2J\x1b]0;x\x07",
        "a\nb",
        "\u202e",
        "\ud800",
        "\ufffe",
        "../x",
        "/etc/passwd",
    ),
    *("x" * 300, "x" * 100_000, "é" * 5000, "{{ 1 }}", "%s%n", "<|im_end|>"),
]
VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        3,
        7,
        100,
        65536,
        1 << 31,
        -(1 << 31),
        1 << 32,
        1 << 33,
        1 << 40,
        1 << 63,
        1 << 64,
    ),
    *(10**30, 10**400, 0.0, 0.5, -1.5, 1e308, 1e-320, float("nan"), float("inf"), float("-inf")),
    *([], [0], [None], ["x"], [[]], [1, 2, 3], [0] * 5000, {}, {"x": 1}, [[["x"]]]),
    *TEXTS,
]


def a_few(choose: random.Random) -> int:
    """How many kinds of damage a case has: mostly one."""
    return choose.choice([1, 1, 1, 2, 3])


def damaged_bytes(whole: bytes, choose: random.Random, header: int | None = None) -> bytes:
    """`whole` after damage, most of it in the first `header` bytes, at small bytes above all: they belong to numbers,
    of which sizes and types are made."""
    data = bytearray(whole)
    for _ in range(choose.choice([1, 1, 1, 2, 4])):
        if not data:
            break
        size = len(data) if header is None or choose.random() < 0.1 else min(header, len(data))
        at = choose.randrange(size)
        for _ in range(20):
            if data[at] < 32 or choose.random() < 0.4:
                break
            at = choose.randrange(size)
        length = choose.choice([1, 2, 4, 8, 16, 64, 300])
        kind = choose.choice(["bit", "bit", "byte", "number", "number", "end", "zeros", "gap", "copy", "swap", "noise"])
        if kind == "bit":
            data[at] ^= 1 << choose.randrange(8)
        elif kind == "byte":
            data[at] = choose.randrange(256)
        elif kind == "number":
            form = choose.choice(["<H", "<I", "<Q", ">I"])
            number = choose.choice(NUMBERS) & ((1 << 8 * struct.calcsize(form)) - 1)
            data[at : at + struct.calcsize(form)] = struct.pack(form, number)
        elif kind == "end":
            del data[choose.randrange(len(data)) :]
        elif kind == "zeros":
            data[at : at + length] = bytes(length)
        elif kind == "gap":
            del data[at : at + length]
        elif kind == "copy":
            data[at:at] = data[at : at + length]
        elif kind == "swap":
            other = choose.randrange(size)
            first, second = data[at : at + length], data[other : other + length]
            data[at : at + length], data[other : other + length] = second, first
        else:
            data[at : at + length] = choose.randbytes(length)
    return bytes(data)


def damaged_json(whole: str, choose: random.Random) -> bytes:
    """A JSON text after damage: to its values in three cases of four, else to its bytes."""
    kind = choose.random()
    if kind < 0.2:
        return damaged_bytes(whole.encode(), choose)
    if kind < 0.24:
        deep = choose.choice(["[", '{"a":', "9"]) * choose.choice([200, 5000, 50_000])
        at = choose.randrange(len(whole))
        return (whole[:at] + deep + whole[at:]).encode()
    content = json.loads(whole)
    damage_value(content, choose)
    return dumped(content)


def dumped(content: Any) -> bytes:
    """JSON, in which half a surrogate pair is written as an escape, as a hostile file would."""
    text = json.dumps(content, ensure_ascii=False)
    return (json.dumps(content) if re.search("[\ud800-\udfff]", text) else text).encode()


def damage_value(content: Any, choose: random.Random) -> None:
    """Change places in a JSON value: other values, deleted, repeated, nested, grown, exchanged."""
    for _ in range(a_few(choose)):
        if not content:
            break
        holder, key = place_in(content, choose)
        kind = choose.random()
        if kind < 0.5:
            holder[key] = copy.deepcopy(choose.choice(VALUES))
        elif kind < 0.62:
            del holder[key]
        elif kind < 0.72:
            other, there = place_in(content, choose)
            holder[key], other[there] = copy.deepcopy(other[there]), copy.deepcopy(holder[key])
        elif isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
            factor = choose.choice([-1, 2, 1000, 1 << 20] if isinstance(holder[key], int) else [-1.0, 0.5, 1000.0])
            holder[key] = holder[key] * factor + choose.choice([0, 1, -1])
        elif isinstance(holder[key], list):
            holder[key] = _list(holder[key], choose)
        elif isinstance(holder[key], str):
            holder[key] = damaged_text(holder[key], choose)
        else:
            holder[key] = [holder[key]]


def _list(values: list[Any], choose: random.Random) -> list[Any]:
    """A list with members repeated, left out, or in another order."""
    kind = choose.randrange(4)
    if kind == 0 or not values:
        return values * choose.choice([2, 100])
    if kind == 1:
        return [*values, copy.deepcopy(choose.choice(values))]
    if kind == 2:
        return values[: choose.randrange(len(values))]
    return choose.sample(values, len(values))


def damaged_text(text: str, choose: random.Random) -> str:
    """A text with something put into it, taken out of it, or repeated."""
    at = choose.randrange(len(text) + 1)
    kind = choose.randrange(4)
    if kind == 0:
        return text[:at] + choose.choice(TEXTS) + text[at:]
    if kind == 1:
        return text[:at]
    if kind == 2:
        return text * choose.choice([2, 50])
    return text + choose.choice(["x", "\0", "é", "\\", "\n", "\x1b[31m"])


def place_in(content: Any, choose: random.Random) -> tuple[Any, Any]:
    """A place in a JSON value: what holds it, and its key or index there."""
    holder, key = content, choose.choice(_keys(content))
    while (keys := _keys(holder[key])) and choose.random() < 0.8:
        holder, key = holder[key], choose.choice(keys)
    return holder, key


def _keys(value: Any) -> Any:
    if isinstance(value, dict):
        return list(value)
    return range(len(value)) if isinstance(value, list) else ()


def number(choose: random.Random, near: int = 0) -> int:
    """A number at the edge of what a type holds, or next to `near`."""
    if choose.random() < 0.4:
        return near * choose.choice([0, 1, 2, -1, 1000]) + choose.choice([-1, 0, 1, 2, 16])
    value = choose.choice(NUMBERS)
    return value if choose.random() < 0.7 else -value


def one_of(choose: random.Random, *ways: Callable[[], None]) -> None:
    """Do one of several things."""
    choose.choice(ways)()
