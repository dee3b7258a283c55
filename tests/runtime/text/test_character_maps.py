"""A character map in a tokenizer.json says how large it is, and the library takes as much memory as it says."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest

from edge.runtime.text.tokenizer_file import check_character_maps

SIZES = [9, 100, 1 << 20, 1 << 31, (1 << 32) - 1]


def tokenizer(characters: bytes, **form: Any) -> str:
    normalizer = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(characters).decode()}
    return json.dumps({"normalizer": {"type": "Sequence", "normalizers": [normalizer]}, "model": {}}, **form)


def ways_to_write(text: str, choose: random.Random) -> list[str]:
    """The same JSON with spaces, and with letters of the map and its name as escapes."""
    name = "precompiled_charsmap"
    at = choose.randrange(len(name))
    escaped = f"{name[:at]}\\u{ord(name[at]):04x}{name[at + 1 :]}"
    value = text.index(name) + len(name) + 4
    return [
        text,
        text.replace(name + '": "', name + '"  :\n "'),
        text.replace(name, escaped),
        f"{text[:value]}\\u{ord(text[value]):04x}{text[value + 1 :]}",
    ]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rest", [b"", b"x", b"xyz", b"some"])
def test_a_map_that_is_shorter_than_it_says_is_refused_however_it_is_written(size: int, rest: bytes) -> None:
    whole = tokenizer(size.to_bytes(4, "little") + rest)
    for text in ways_to_write(whole, random.Random(size)):
        assert json.loads(text) == json.loads(whole)
        if size < len(text):
            continue
        with pytest.raises(ValueError, match=f"says that it has {size:,} bytes"):
            check_character_maps(text.encode())


@pytest.mark.parametrize("length", [0, 4, 1000])
def test_a_map_as_large_as_it_says_passes(length: int) -> None:
    characters = length.to_bytes(4, "little") + random.Random(1).randbytes(length)
    for text in ways_to_write(tokenizer(characters), random.Random(2)):
        check_character_maps(text.encode())
    check_character_maps(tokenizer(b"").encode())
