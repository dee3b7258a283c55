"""Unigram tokenizers (Kudo 2018) without the tokenizers library.

Kept on purpose: it saves 390 MiB of private memory for a vocabulary of 250,000 pieces, which the library keeps as a
tree of hash tables and this module as one table. The ids are the library's, which tests compare; texts for which that
is not sure (Unicode beyond characters that stand for themselves, added tokens within a text) go to the library, which
is then loaded.
"""

from __future__ import annotations

import base64
import functools
import json
import math
import re
import struct
import unicodedata
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from edge.runtime.text.bounds import flat

Normalizer = Callable[[str], str]

SPACE = "\u2581"  # what stands for a space in pieces
UNKNOWN_PENALTY = 10.0  # below the least of the pieces' scores
PIECE, ADDED = 256, 1 << 13  # maximum characters of a piece, and added tokens; with more, the library is asked
WORDS, WORD = 5000, 32  # words that are kept with their ids, 1 MB, and the maximum characters of one
MAPPED = 64  # maximum bytes that a character is mapped to; of those of checkpoints 33
UNICODE = ("NFC", "NFD", "NFKC", "NFKD")
RUN = " {2,}"  # the one regular expression that normalizers of this kind replace

# Characters that no neighbour joins, old enough that every version of Unicode normalizes them alike: Latin, Greek,
# Cyrillic, punctuation, currencies, kana, ideographs. Python and Rust disagree on which control characters are spaces.
_OTHER = re.compile(
    "[^\t\n -\u007e\u00a0-\u02ff\u0370-\u0482\u048a-\u052f\u2010-\u2027\u2030-\u205e\u2581\u20a0-\u20bf"
    "\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff]"
)


class Tokenizer(Protocol):
    """Text to token ids and back. added: ids of tokens that texts are split at; special: those of them without a text;
    controls: the texts of these, each with whether only a whole word counts, and others of the rest; size: of the
    vocabulary with added tokens."""

    added: frozenset[int]
    special: frozenset[int]
    controls: dict[str, bool]
    others: dict[str, bool]
    size: int

    @property
    def unknown(self) -> int | None:
        """The token that stands for a character which the vocabulary lacks; None where each has bytes, or nothing."""

    @property
    def normalize(self) -> Callable[[str], str] | None:
        """The function that normalizes a text before it is split; None where there is none, or its time is unknown."""

    def encode(self, text: str) -> list[int]: ...

    def encode_plain(self, text: str, barred: Collection[str]) -> list[int] | None:
        """Token ids of `text` without the tokens `barred`; None where that needs another tokenizer."""

    def renamed(self, names: Mapping[str, str]) -> Tokenizer:
        """The same tokenizer with other names of tokens."""

    def decode(self, ids: Sequence[int]) -> str: ...

    def token(self, token_id: int) -> str | None: ...


def read_unigram(path: Path, library: Callable[[], Tokenizer]) -> Unigram | None:
    """The tokenizer of a `tokenizer.json`; None where it is not a Unigram model or has unknown parts, OSError or
    ValueError where it cannot be read. library: reads the same file with the library."""
    content = json.loads(path.read_bytes())
    try:
        return Unigram(content, library)
    except (_NotKnown, KeyError, TypeError, AttributeError, IndexError, OverflowError, struct.error):
        return None


class _NotKnown(Exception):
    """The file asks for what is not done here."""


class Unigram:
    """A Unigram tokenizer with words that begin with `SPACE`. content: of the `tokenizer.json`."""

    def __init__(self, content: dict[str, Any], library: Callable[[], Tokenizer]) -> None:
        model = content["model"]
        _know(model["type"] == "Unigram" and not model.get("byte_fallback", False))
        self._library: Callable[[], Tokenizer] | Tokenizer = library
        self._normalize = _normalizer(content.get("normalizer"))
        _know(_grows_once(content.get("normalizer")))
        self._words_apart, self._split = _pre_tokenizer(content["pre_tokenizer"])
        _know(_metaspace(content["decoder"]))
        self._pieces: list[str] = [piece for piece, _ in model["vocab"]]
        self._scores = array("d", [score for _, score in model["vocab"]])
        self._ids = {piece: i for i, piece in enumerate(self._pieces)}
        self._ids.pop("", None)
        self._longest = max(map(len, self._pieces))
        _know(self._longest <= PIECE and math.isfinite(sum(self._scores)))
        self.unknown: int = model["unk_id"]
        _know(type(self.unknown) is int and 0 <= self.unknown < len(self._pieces))
        self._unknown_score = min(self._scores) - UNKNOWN_PENALTY
        added = content.get("added_tokens", [])
        _know(len(added) <= ADDED)
        self._added: dict[int, str] = {token["id"]: token["content"] for token in added}
        _know(all(self._ids.get(text, i) == i for i, text in self._added.items()))
        _know(all(i >= len(self._pieces) or self._pieces[i] == text for i, text in self._added.items()))
        marks = "|".join(re.escape(text) for text in self._added.values() if text)
        self._mark = re.compile(marks) if marks else None
        self.added = frozenset(self._added)
        self.special = frozenset(token["id"] for token in added if token["special"])
        self.controls = {token["content"]: token.get("single_word", False) for token in added if token["special"]}
        self.others = {token["content"]: token.get("single_word", False) for token in added if not token["special"]}
        self.size = len(self._ids.keys() | self._added.values())
        self._known: dict[str, list[int]] = {}  # words

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, no special tokens around them."""
        normalized = self.normalize(text) if self._sure(text) else ""
        if not normalized or not self._sure(normalized):
            return self._full().encode(text)
        ids: list[int] = []
        known, get = self._known, self._ids.get
        for word in self._words(normalized):
            found = known.get(word)
            if found is None:
                found = self._best(word, get)
                if len(word) <= WORD:
                    if len(known) == WORDS:
                        known.clear()
                    known[word] = found
            ids += found
        return ids

    def encode_plain(self, text: str, barred: Collection[str]) -> list[int] | None:
        """Token ids of `text` without the tokens `barred`; None where that takes the library."""
        if _OTHER.search(text) is not None:
            return None
        normalized = self.normalize(text)
        others = [token for token in self._added.values() if token and token not in barred]
        if not normalized or _OTHER.search(normalized) is not None or any(t in text or t in normalized for t in others):
            return None
        ids = self._ids

        def get(piece: str) -> int | None:
            return None if piece in barred else ids.get(piece)

        return [token for word in self._words(normalized) for token in self._best(word, get)]

    def normalize(self, text: str) -> str:
        """Normalize a text before it is split; empty where the character map is damaged."""
        try:
            return self._normalize(text)
        except (IndexError, ValueError):  # a damaged character map
            return ""

    def renamed(self, names: Mapping[str, str]) -> Tokenizer:
        """The same tokenizer with other names of tokens."""
        return self._full().renamed(names)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special ones left out."""
        pieces, added, silent, size = self._pieces, self._added, self.special, len(self._pieces)
        tokens = [pieces[i] if i < size else added[i] for i in ids if i not in silent and (i < size or i in added)]
        return tokens[0].replace(SPACE, "") + "".join(tokens[1:]).replace(SPACE, " ") if tokens else ""

    def token(self, token_id: int) -> str | None:
        """The text of a token as the vocabulary writes it."""
        known = 0 <= token_id < len(self._pieces)
        return self._added.get(token_id, self._pieces[token_id] if known else None)

    def _full(self) -> Tokenizer:
        """The library's tokenizer; two threads may ask for it at a time."""
        library = self._library
        if callable(library):
            self._library = library = library()
        return library

    def _sure(self, text: str) -> bool:
        """True if the text is certain to be encoded here as by the library."""
        return _OTHER.search(text) is None and (self._mark is None or self._mark.search(text) is None)

    def _words(self, text: str) -> list[str]:
        """The parts of a normalized text that are encoded each by itself."""
        words = []
        for part in text.split() if self._words_apart else [text]:
            marked = part.replace(" ", SPACE)
            if marked[0] != SPACE:
                marked = SPACE + marked
            words += [SPACE + word for word in marked[1:].split(SPACE)] if self._split else [marked]
        return words

    def _best(self, word: str, get: Callable[[str], int | None]) -> list[int]:
        """The ids of the pieces whose scores have the largest sum (Viterbi); adjacent unknown ones are one. get: the
        id of a piece."""
        scores, size = self._scores, len(word)
        best = [0.0] * (size + 1)
        starts = [-1] * (size + 1)  # where the piece begins that ends here
        tokens = [0] * (size + 1)
        for start in range(size):
            till_here = best[start]
            for end in range(start + 1, min(size, start + self._longest) + 1):
                token = get(word[start:end])
                if token is None:
                    if end > start + 1:
                        continue
                    token, score = self.unknown, self._unknown_score + till_here
                else:
                    score = scores[token] + till_here
                if starts[end] < 0 or score > best[end]:
                    best[end], starts[end], tokens[end] = score, start, token
        found: list[int] = []
        unknown, end = self.unknown, size
        while end > 0:
            token = tokens[end]
            if token != unknown or not found or found[-1] != unknown:
                found.append(token)
            end = starts[end]
        found.reverse()
        return found


def _know(known: bool) -> None:
    if not known:
        raise _NotKnown


def _metaspace(part: dict[str, Any]) -> bool:
    """True if a part puts a space in front of every text and replaces all spaces by `SPACE`, or does the reverse."""
    scheme = part.get("prepend_scheme", "always") if part.get("add_prefix_space", True) else "never"
    return bool(part["type"] == "Metaspace" and part["replacement"] == SPACE and scheme == "always")


def _pre_tokenizer(part: dict[str, Any]) -> tuple[bool, bool]:
    """Return two flags: a text is split at white space first; it is split at every `SPACE`."""
    apart = part["type"] == "Sequence"
    if apart:
        first, part = part["pretokenizers"]
        _know(first["type"] == "WhitespaceSplit")
    _know(_metaspace(part))
    return apart, bool(part.get("split", True))


def _grows_once(normalizer: dict[str, Any] | None) -> bool:
    """True if a normalizer makes texts longer by a character map and by Unicode's rules at most once each."""
    kinds = [part["type"] for part in flat(normalizer or {"type": None})]
    return kinds.count("Precompiled") <= 1 and sum(kind in UNICODE for kind in kinds) <= 1


def _normalizer(part: dict[str, Any] | None) -> Normalizer:
    """The normalization of a text of characters that no neighbour joins."""
    if part is None:
        return str
    kind = part["type"]
    if kind == "Sequence":
        parts = [_normalizer(each) for each in part["normalizers"]]
        return lambda text: functools.reduce(lambda text, part: part(text), parts, text)
    if kind in UNICODE:
        return lambda text: unicodedata.normalize(kind, text)
    if kind == "Precompiled":
        characters = CharacterMap(base64.b64decode(part["precompiled_charsmap"]))
        return lambda text: text.translate(characters)
    if kind == "Replace" and part["pattern"].get("Regex") == RUN:
        run, by = re.compile(RUN), part["content"]
        _know(isinstance(by, str) and len(by) <= 2)
        return lambda text: run.sub(lambda _: by, text)
    if kind == "Strip":
        strips: list[Normalizer] = [str, str.rstrip, str.lstrip, str.strip]
        return strips[2 * bool(part["strip_left"]) + bool(part["strip_right"])]
    raise _NotKnown


class CharacterMap(dict[int, str]):
    """SentencePiece's compiled character map for `str.translate`, filled as characters come: a double-array trie over
    their UTF-8 (darts-clone), and texts that end with a zero byte.

    blob: four bytes with the size of the trie, the trie, the texts.
    """

    def __init__(self, blob: bytes) -> None:
        super().__init__()
        (size,) = struct.unpack_from("<I", blob)
        self._units = memoryview(blob)[4 : 4 + size].cast("I")
        self._texts = blob[4 + size :]
        _know(max(map(len, self._texts.split(b"\0"))) <= MAPPED)

    def __missing__(self, code: int) -> str:
        self[code] = mapped = self._mapped(chr(code))
        return mapped

    def _mapped(self, character: str) -> str:
        """The entry of the shortest beginning of a character that has one."""
        units = self._units
        at = _children(units[0])
        for byte in character.encode():
            at ^= byte
            unit = units[at]
            if unit & 0x800000FF != byte:
                break
            at ^= _children(unit)
            if unit >> 8 & 1:  # there is an entry, which the first child holds
                start = units[at] & 0x7FFFFFFF
                return self._texts[start : self._texts.index(0, start)].decode()
        return character


def _children(unit: int) -> int:
    """Offset from a node of the trie to its children."""
    return (unit >> 10) << ((unit & 0x200) >> 6)
