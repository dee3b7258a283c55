"""The tokenizer as a bundle carries it: the same one, in the form that loads fastest."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from edge.errors import CheckpointError, EdgeError
from edge.runtime.text.template import TURNS, WORDS, ChatTemplate, Message

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint, TokenizerFiles

SHOWN = 3  # tokens in a sentence


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


def fitted(checkpoint: Checkpoint, say: Callable[[str], None]) -> str:
    """A checkpoint's `tokenizer.json` without the added tokens that its embedding has no row for: those of images, of a
    model whose text part alone is here.

    Raises:
        CheckpointError: more than that lacks a row: a part of the vocabulary, or what the chat template writes.
    """
    files, rows = checkpoint.tokenizer, int(checkpoint.config["vocab_size"])
    raw = json.loads(files.json)
    vocab, added = raw["model"]["vocab"], raw.get("added_tokens", [])
    if max([len(vocab) - 1, *(vocab.values() if isinstance(vocab, dict) else ()), *(t["id"] for t in added)]) < rows:
        return files.json
    from tokenizers import Tokenizer

    tokenizer = files.parsed
    beyond = dict(sorted(((t, i) for t, i in tokenizer.get_vocab().items() if i >= rows), key=lambda pair: pair[1]))
    if not beyond:
        return files.json
    there = tokenizer.get_vocab(with_added_tokens=False)
    kept = [token for token in added if token["content"] not in beyond]
    written = _scaffold(files)
    for token in (token for token in beyond if token in there or token in written):
        why = "of its vocabulary" if token in there else "which its chat template writes"
        raise CheckpointError(
            f"{checkpoint.name} does not fit its tokenizer: the embedding has {rows:,} rows, and the token {token!r}, "
            f"{why}, has the number {beyond[token]:,}, counted from 0; get the checkpoint and its tokenizer anew."
        )
    raw["added_tokens"] = kept
    fitting = _dump(raw)
    left = Tokenizer.from_str(fitting).get_vocab()
    if any(left.get(token["content"]) != token["id"] for token in kept):
        raise CheckpointError(f"{checkpoint.name} has added tokens in an order that cannot be kept; save it anew.")
    shown = ", ".join(list(beyond)[:SHOWN]) + (", ..." if len(beyond) > SHOWN else "")
    say(f"The tokenizer has {len(beyond)} more tokens than the embedding has rows ({shown}); the bundle omits them.")
    return fitting


def _scaffold(files: TokenizerFiles) -> str:
    """Return the text that the chat template writes around messages; empty if it cannot be rendered."""
    from edge.export.manifest.chat_format import special_tokens

    if files.chat_template is None:
        return ""
    talk = [Message(role=role, content=WORDS) for role in TURNS]
    try:
        return ChatTemplate(files.chat_template, special_tokens(files)).render(talk)
    except EdgeError:
        return ""


def _dump(raw: Any) -> str:
    return json.dumps(raw, ensure_ascii=False, separators=(",", ":"))


def _holds(pairs: list[Any]) -> bool:
    """True if strings can replace these pairs of merges. `tokenizers` splits a string at its space, and treats one that
    begins with "#version" as a file's first line."""
    return all(
        isinstance(pair, list) and " " not in pair[0] and " " not in pair[1] and not pair[0].startswith("#version")
        for pair in pairs
    )
