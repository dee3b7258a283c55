"""Checks of a stranger's `tokenizer.json` before the tokenizers library reads it.

While it reads, the library makes room for what a character map says that it has, and normalizes added tokens: what does
not come to an end then cannot be interrupted. The files of checkpoints have megabytes, and are searched instead of
parsed.
"""

from __future__ import annotations

import binascii
import contextlib
import json
import mmap
import re
from collections.abc import Iterator
from typing import Any

from edge.runtime.text.bounds import check_made, growth, in_time, is_known

_MAP = re.compile(rb'\s*:\s*"([^"]*)"')  # SentencePiece's, in base64
_ESCAPED = re.compile(rb"\\u00[2-7]")  # a letter of ASCII, which no program writes so
_TRUE = re.compile(rb"\s*:\s*true")
_OBJECT = re.compile(rb"\s*:\s*(?=[{\[])")
_PART = 1 << 20  # bytes of a normalizer; the character map of the largest known has a third


def _values(tokenizer: bytes | mmap.mmap, name: bytes, value: re.Pattern[bytes]) -> Iterator[re.Match[bytes]]:
    """Yield the matches of `value` that follow the key `name` in the file. Python finds bytes ten times as fast as
    expressions."""
    key, at = b'"%b"' % name, -1
    while (at := tokenizer.find(key, at + 1)) >= 0:
        if found := value.match(tokenizer, at + len(key)):
            yield found


def check_character_maps(tokenizer: bytes | mmap.mmap) -> None:
    """Raise ValueError where a character map in the text of a `tokenizer.json` says that it is larger than it is: the
    library would take as much memory as it says, or end the process."""
    for found in _values(tokenizer, b"precompiled_charsmap", _MAP):
        if b"\\u" not in found[1][:48]:  # eight letters, each of which may be an escape
            _check_character_map(found[1])
    if _ESCAPED.search(tokenizer):  # in the map or its name, perhaps
        json.loads(bytes(tokenizer), object_hook=_check_member)


def _check_member(member: dict[str, Any]) -> None:
    if isinstance(characters := member.get("precompiled_charsmap"), str):
        _check_character_map(characters.encode(errors="replace"))


def _check_character_map(encoded: bytes) -> None:
    head = encoded.replace(b"\\", b"")[:8]
    with contextlib.suppress(binascii.Error):  # the library refuses it
        size = int.from_bytes(binascii.a2b_base64(head + b"=" * (-len(head) % 4))[:4], "little")
        if size > len(encoded):
            raise ValueError(f"its character map says that it has {size:,} bytes and is shorter")


def check_added_tokens(tokenizer: bytes | mmap.mmap) -> None:
    """Raise BundleError where normalizing the added tokens of a `tokenizer.json` would make too much of them, or not
    come to an end; ValueError where it is no JSON."""
    if not _ESCAPED.search(tokenizer):
        starts = [found.end() for found in _values(tokenizer, b"normalizer", _OBJECT)]
        if not starts or not any(_values(tokenizer, b"normalized", _TRUE)):
            return
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
            parts = [_part(tokenizer[start : start + _PART]) for start in starts]
            if is_known(parts) and max(map(growth, parts)) * len(tokenizer) < 1 << 24:
                return
    whole = json.loads(bytes(tokenizer))
    added = whole.get("added_tokens") or []
    texts = [token["content"] for token in added if token.get("normalized", True)]
    normalizer, characters = whole.get("normalizer"), sum(map(len, texts))
    if texts and normalizer:
        check_made(growth(normalizer) * characters, "its added tokens")
        if not is_known([normalizer]):
            _try_normalizer(normalizer, texts, characters)


def _part(content: bytes) -> dict[str, Any]:
    """The part that begins here."""
    part, _ = json.JSONDecoder().raw_decode(content.decode(errors="replace"))
    assert isinstance(part, dict)
    return part


def _try_normalizer(normalizer: dict[str, Any], texts: list[str], characters: int) -> None:
    """BundleError where a normalizer does not come to an end of some texts."""
    from tokenizers import Tokenizer

    model = {"type": "WordLevel", "unk_token": "", "vocab": {"": 0}}
    alone = Tokenizer.from_str(json.dumps({"added_tokens": [], "normalizer": normalizer, "model": model}))
    in_time(lambda: alone.encode_batch(texts, add_special_tokens=False), characters)
