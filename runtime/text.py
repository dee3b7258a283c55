"""Text to token ids and back: the bundle's tokenizer, a detokenizer for streams, and stop strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edge.bundle import TOKENIZER, Bundle
from edge.errors import BundleError, InputError
from edge.runtime.memory import release_freed

if TYPE_CHECKING:
    from edge.runtime.unigram import Tokenizer

REPLACEMENT = "\ufffd"
INCOMPLETE = 3  # most replacement characters that a tail which may still become one character decodes to
LONG_WINDOW = 16  # tokens after which a detokenizer that found no clean end keeps only the last few
SHORT_WINDOW = 8


class Text:
    """The bundle's tokenizer, with the special tokens its manifest names.

    Raises:
        BundleError: `tokenizer.json` cannot be read.
    """

    def __init__(self, bundle: Bundle) -> None:
        path = bundle.path(TOKENIZER)
        # Encoder-decoders alone: of their vocabularies most are Unigram, and reading others takes time for nothing.
        self._tokenizer = _unigram(path) if bundle.manifest.text is not None else _Library(path)
        tokens = bundle.manifest.tokens
        self._led = tokens.led
        self.eos = frozenset(tokens.eos)
        self.special = self._tokenizer.special
        # Logits may have more entries than the vocabulary: models round the size of their embeddings up.
        self._silent = self.special.union(range(self._tokenizer.size, bundle.manifest.dims.vocab_size))

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; special tokens written out in it are recognised, none is added.

        Raises:
            InputError: `text` holds half of a surrogate pair, which no encoding has.
        """
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError("The text is not valid Unicode; give it in UTF-8.") from None
        return self._tokenizer.encode(text)

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a whole prompt: `encode`, with `bos` in front where the model wants it and `text` lacks it."""
        return self._led(self.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; special tokens have none, invalid UTF-8 becomes U+FFFD."""
        return self._tokenizer.decode(ids)

    def token(self, token_id: int | None) -> str | None:
        """A token as the vocabulary writes it."""
        return None if token_id is None else self._tokenizer.token(token_id)

    def detokenizer(self) -> Detokenizer:
        """A fresh detokenizer for one answer."""
        return Detokenizer(self.decode, self._silent)


class _Library:
    """Any `tokenizer.json`, read by the tokenizers library.

    Raises:
        BundleError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer  # 3 MB that a transcription and most translations do without

        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as e:  # tokenizers raises bare exceptions
            raise BundleError(f"{path} cannot be read as a tokenizer ({e}); export or copy the bundle again.") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        added = self._tokenizer.get_added_tokens_decoder()
        self.special = frozenset(i for i, token in added.items() if token.special)
        self.size: int = self._tokenizer.get_vocab_size()
        release_freed()  # what reading it took: 10 MB of SmolLM2-135M, beside weights that load meanwhile

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def token(self, token_id: int) -> str | None:
        return self._tokenizer.id_to_token(token_id)


def _unigram(path: Path) -> Tokenizer:
    """A Unigram tokenizer without the library, where the file holds one that is known; else the library's."""
    from edge.runtime.unigram import read_unigram

    try:
        found = read_unigram(path, lambda: _Library(path))
    except (OSError, ValueError):
        found = None  # the library says what is wrong
    return found or _Library(path)


class Detokenizer:
    """Turns a stream of token ids into text as soon as characters are whole.

    The pieces add up to what decoding all the tokens at once gives. Each token costs decoding a few tokens: those
    whose text is not complete, after the last ones that were, because a token's leading space depends on what
    stands before it.

    Args:
        decode: gives the text of token ids.
        silent: ids that have no text.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], silent: frozenset[int]) -> None:
        self._decode = decode
        self._silent = silent
        self._before: list[int] = []  # tokens given out last
        self._before_text = ""
        self._pending: list[int] = []
        self._given = 0  # characters of the pending text that were given out

    def push(self, token: int) -> str:
        """The text that became certain with this token; often empty while a character spans tokens."""
        if token in self._silent:
            return ""
        self._pending.append(token)
        text = self._pending_text()
        certain = max(len(text.rstrip(REPLACEMENT)), len(text) - INCOMPLETE)
        piece = text[self._given : certain]
        self._given = max(self._given, certain)
        if certain == len(text):
            self._before, self._before_text = self._pending, self._decode(self._pending)
            self._pending, self._given = [], 0
        elif len(self._pending) > LONG_WINDOW:
            self._shorten(held=len(text) - certain)
        return piece

    def flush(self) -> str:
        """What is left when no token follows: an unfinished character as U+FFFD."""
        piece = self._pending_text()[self._given :]
        self._before, self._before_text, self._pending, self._given = [], "", [], 0
        return piece

    def _pending_text(self) -> str:
        whole = self._decode(self._before + self._pending)
        if whole.startswith(self._before_text):
            return whole[len(self._before_text) :]
        return self._decode(self._pending)  # an invalid byte spoils a whole run in a byte-fallback vocabulary

    def _shorten(self, held: int) -> None:
        self._before, self._before_text = [], ""
        self._pending = self._pending[-SHORT_WINDOW:]
        self._given = max(0, len(self._decode(self._pending)) - held)


class StopStrings:
    """Finds the first of some strings in streamed text, also where it spans pieces.

    Raises:
        InputError: a stop string is empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise InputError("A stop string is empty; give at least one character, or no stop string at all.")
        self._stops = tuple(stops)
        self._held = ""  # an end of the text so far that may be the start of a stop string

    def push(self, text: str) -> tuple[str, bool]:
        """Text that can be shown, and whether a stop string was found: then it and what follows are left out."""
        if not self._stops:
            return text, False
        text = self._held + text
        found = [at for at in map(text.find, self._stops) if at >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        held = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], False

    def flush(self) -> str:
        """The text held back, when nothing follows."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that starts `stop` without completing it."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
