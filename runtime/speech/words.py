"""The texts of a transcription's tokens: the vocabulary without what only encoding text needs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from edge.bundle import TOKENIZER, Bundle
from edge.errors import BundleError


class Spoken(Protocol):
    """Turns token ids into text; special tokens have none. `edge.runtime.text.tokenizer.Text` is another one."""

    @property
    def eos(self) -> frozenset[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


def spoken(bundle: Bundle) -> Spoken:
    """Return what decodes a speech bundle's tokens. Where its tokenizer works on bytes, as Whisper's does, this is a
    table of their bytes: 1 MB instead of 14 MB for a tokenizer that encodes too. BundleError where `tokenizer.json`
    cannot be read."""
    path = bundle.path(TOKENIZER)
    try:
        content = json.loads(path.read_bytes())
        decoder, model, added = content.get("decoder"), content["model"], content.get("added_tokens", [])
        bytewise = decoder is not None and decoder["type"] == "ByteLevel" and model["type"] == "BPE"
        if bytewise:
            vocabulary = {i: token for token, i in model["vocab"].items()}
            vocabulary |= {token["id"]: "" if token["special"] else token["content"] for token in added}
            return Words(vocabulary.items(), frozenset(bundle.manifest.tokens.eos))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        reason = e.strerror if isinstance(e, OSError) else f"{type(e).__name__}: {e}"
        advice = "export or copy the bundle again"
        raise BundleError(f"{path} cannot be read as a tokenizer ({reason}); {advice}.") from None
    from edge.runtime.text.tokenizer import Text

    return Text(bundle)


class Words:
    """The bytes of every token, one after the other. tokens: ids, and tokens as a byte-level vocabulary writes
    them. eos: the ids that end a text."""

    def __init__(self, tokens: Iterable[tuple[int, str]], eos: frozenset[int]) -> None:
        self.eos = eos
        letters = byte_letters()
        pieces: dict[int, bytes] = {}
        for i, token in tokens:
            try:
                pieces[i] = bytes([letters[letter] for letter in token])
            except KeyError:  # an added token may hold any letter, and stands for itself
                pieces[i] = token.encode()
        every = [pieces.get(i, b"") for i in range(max(pieces, default=-1) + 1)]
        self._bytes = b"".join(every)
        self._ends = np.cumsum([0, *map(len, every)], dtype=np.int32)  # token i: bytes from ends[i] to ends[i + 1]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; those without text are left out, invalid UTF-8 becomes U+FFFD."""
        ends, last = self._ends, len(self._ends) - 1
        parts = [self._bytes[ends[i] : ends[i + 1]] for i in ids if 0 <= i < last]
        return b"".join(parts).decode("utf-8", "replace")


def byte_letters() -> dict[str, int]:
    """The bytes that the letters of byte-level vocabularies stand for: printable ones for themselves, the others, in
    order, as the letters from U+0100 on (Radford et al. 2019, openai/gpt-2, encoder.py)."""
    themselves = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = sorted(set(range(256)) - set(themselves))
    return {chr(byte): byte for byte in themselves} | {chr(256 + i): byte for i, byte in enumerate(others)}
