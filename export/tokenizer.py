"""The tokenizer as a bundle carries it: the same one, in the form that loads fastest."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer


def compact(text: str) -> str:
    """A `tokenizer.json` without indentation and with each BPE merge as one string, "a b", where that means the same.

    `tokenizers` reads both forms of merges. For a vocabulary of 49,152 tokens, strings load in 48 ms instead of 70 and
    take 21 MB less at the peak, which a small model's `edge run` shows.
    """
    raw = json.loads(text)
    pairs = raw.get("model", {}).get("merges")
    plain = _dump(raw)
    if not pairs or not all(isinstance(pair, list) for pair in pairs):
        return plain
    raw["model"]["merges"] = [" ".join(pair) for pair in pairs]
    strings = _dump(raw)
    return strings if _same(strings, plain) else plain  # a token with a space in it cannot be written so


def _dump(raw: Any) -> str:
    return json.dumps(raw, ensure_ascii=False, separators=(",", ":"))


def _same(a: str, b: str) -> bool:
    try:
        return bool(Tokenizer.from_str(a).to_str() == Tokenizer.from_str(b).to_str())
    except Exception:  # tokenizers raises bare exceptions
        return False
