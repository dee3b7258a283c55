"""Text to token ids and back: the bundle's tokenizer, a detokenizer for streams, and stop strings."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import mmap
import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from edge.bundle import TOKENIZER, Bundle
from edge.errors import BundleError, EdgeError, InputError, on_one_line
from edge.runtime.mapped_file import mapped_file, unchanged
from edge.runtime.text.bounds import (
    ASSUMED,
    LARGEST,
    OF_TOKEN,
    are_known_tokens,
    check_lengths,
    check_made,
    growth,
    in_time,
    is_known,
    is_known_model,
    parts_of,
)
from edge.runtime.text.controls import LANGUAGE_MARKS, Controls, rename
from edge.runtime.text.tokenizer_file import check_added_tokens, check_character_maps

if TYPE_CHECKING:
    from edge.manifest import TextFormat
    from edge.runtime.text.unigram import Tokenizer

_log = logging.getLogger(__name__)

REPLACEMENT = "\ufffd"
SPACE = "\u2581"  # what stands for a space in pieces
NOWHERE = "\U0010fffd"  # a character that is in no vocabulary
INCOMPLETE = 3  # maximum replacement characters of a tail that may still become one character
LONG_WINDOW = 16  # tokens after which a detokenizer that found no clean end keeps only the last few
SHORT_WINDOW = 8
_BLANK = re.compile(r"<extra_id_\d+>|<mask>|\[MASK\]")  # for an encoder-decoder to fill in: people type it


class Text:
    """The bundle's tokenizer and its special tokens; BundleError where `tokenizer.json` cannot be read.

    spare: whether a second tokenizer, which texts with typed control tokens take, is kept: as much memory again.
    """

    def __init__(self, bundle: Bundle, *, spare: bool = True) -> None:
        self.path = path = bundle.path(TOKENIZER)
        _check_size(path)
        # For text-to-text models only: most of their vocabularies are Unigram.
        self._tokenizer = _unigram(path) if bundle.manifest.text is not None else _Library(path)
        tokens = bundle.manifest.tokens
        self._name, self._template = bundle.manifest.name, bundle.manifest.chat_template or ""
        self._led = tokens.led
        self.eos = frozenset(tokens.eos)
        self.special = self._tokenizer.special
        self._on_purpose = _on_purpose(bundle.manifest.text)
        self._spare = spare
        self._making, self._making_renamed = threading.Lock(), threading.Lock()
        self._controls: Controls | None = None
        self._kept: Tokenizer | None = None  # in which control tokens have other names
        self._missed = set[str]()  # characters that were said to be missing

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`. Special tokens are recognised, except hidden ones (`controls`), and none is
        added; InputError where the text is not valid Unicode."""
        _check_unicode(text)
        if self.controls.has_hidden(text):
            ids = self._renamed().encode(self.controls.renamed(text))
        else:
            ids = self._tokenizer.encode(text)
        return self._noticed(text, ids)

    def encode_content(self, text: str) -> list[int]:
        """Return the token ids of a text that somebody typed, like `encode_some`: control tokens in it are text."""
        controls = self.controls
        if not controls.typed(text):
            return self.encode_some(text)
        found = self._tokenizer.encode_plain(text, controls.texts)
        return self.encode_some(controls.hide(text)) if found is None else self._noticed(text, found)

    @property
    def controls(self) -> Controls:
        """The control tokens, which are text where people typed them: special ones, and others that the chat template
        writes between messages."""
        if self._controls is None:
            with self._making:  # else a text that one thread hides something in is none to another
                self._controls = self._controls or self._made_controls()
        return self._controls

    def _made_controls(self) -> Controls:
        tokenizer, template = self._tokenizer, self._template
        special = {text: whole for text, whole in tokenizer.controls.items() if not self._on_purpose(text)}
        others = {text: whole for text, whole in tokenizer.others.items() if text in template and text.strip()}
        return Controls(special | others, others, tokenizer.normalize)

    def _renamed(self) -> Tokenizer:
        """The tokenizer in which control tokens have other names."""
        with self._making_renamed:
            found = self._kept or self._tokenizer.renamed(self.controls.names)
            if self._spare:
                self._kept = found
            return found

    def _noticed(self, text: str, ids: list[int]) -> list[int]:
        """The tokens of a text. Of each character that the vocabulary lacks it is said once."""
        unknown = self._tokenizer.unknown
        if unknown is None or unknown not in ids:
            return ids
        shown = self.controls.show(text.replace(self._tokenizer.token(unknown) or "", ""))
        new = {c for c in set(shown) - self._missed if unknown in self._tokenizer.encode(c)}
        if new:
            self._missed |= new
            listed = " ".join(sorted(c if c.isprintable() and not c.isspace() else repr(c)[1:-1] for c in new))
            _log.warning("The vocabulary of %s lacks %s: the model cannot read that.", self._name, listed)
        return ids

    def encode_prompt(self, text: str) -> list[int]:
        """Return the token ids of a whole prompt: `encode`, with `bos` in front where the model wants it and `text`
        lacks it; InputError where the text has no tokens."""
        return self._led(self.encode_some(text))

    def encode_some(self, text: str) -> list[int]:
        """Return the token ids of a text like `encode`; InputError where there are none."""
        ids = self.encode(text)
        if not ids:
            raise InputError("The text has no tokens: the tokenizer leaves nothing of it; write something else.")
        return ids

    def end_with(self, after: str) -> None:
        """Add an end token: the first token of the text `after` an answer, if it is an added token of the tokenizer."""
        ids = self._tokenizer.encode(after.lstrip())
        if ids and ids[0] in self._tokenizer.added:
            self.eos |= {ids[0]}

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; special tokens have none, invalid UTF-8 becomes U+FFFD."""
        return self._tokenizer.decode(ids)

    @property
    def reads_lines(self) -> bool:
        """True if tokens tell where a line ends."""
        return "\n" in self.decode(self._tokenizer.encode("a\nb"))

    def token(self, token_id: int | None) -> str | None:
        """The text of a token as the vocabulary writes it."""
        return None if token_id is None else self._tokenizer.token(token_id)

    def detokenizer(self) -> Detokenizer:
        """A fresh detokenizer for one answer."""
        return Detokenizer(self.decode, self.special, self._tokenizer.size)


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError("The text is not valid Unicode; give it in UTF-8.") from None


def _on_purpose(form: TextFormat | None) -> Callable[[str], bool]:
    """Return a test for control tokens that people type on purpose: the target language, or a blank for a model to fill
    in."""
    if form is None:
        return lambda token: False
    languages = {a + code + b for code in form.languages for a, b in LANGUAGE_MARKS} if form.target_in_source else set()
    return lambda token: token in languages or _BLANK.fullmatch(token) is not None


class _Library:
    """Any `tokenizer.json`, read by the tokenizers library; BundleError where it cannot be read; while it is used, a
    part of it that is damaged."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer  # 3 MB that a transcription and most translations do without

        self._path = path
        try:
            with (
                unchanged([mapped_file(path)]),
                path.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
            ):
                check_character_maps(content)
                check_added_tokens(content)
                self._tokenizer = Tokenizer.from_file(str(path))
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            self._tokenizer.post_processor = None  # of texts without special tokens it would only make copies
            added = self._tokenizer.get_added_tokens_decoder()
            normalizer, decoder, splitter = parts_of(self._tokenizer)
            check_lengths(splitter)
            self._growth, self._decoded_growth = growth(normalizer) * growth(splitter), growth(decoder)
            self._decodes_soon = is_known([decoder])
            self._normalizes_soon = is_known([normalizer])
            self._encodes_soon = (
                is_known([normalizer, splitter])
                and is_known_model(self._tokenizer.model)
                and are_known_tokens(added.values(), normalizer)
            )
        except BaseException as e:
            raise self._refused(e) from None
        self.added = frozenset(added)
        self.special = frozenset(i for i, token in added.items() if token.special)
        self.controls = {token.content: token.single_word for token in added.values() if token.special}
        self.others = {token.content: token.single_word for token in added.values() if not token.special}
        self.size: int = self._tokenizer.get_vocab_size()

    @cached_property
    def unknown(self) -> int | None:
        """The token that stands for a character which the vocabulary lacks; None where each has bytes, or nothing."""
        ids = self.encode(NOWHERE)
        if not ids or len(ids) > 2 or self.token(ids[-1]) == SPACE:  # of 4 bytes, or left out
            return None
        return ids[-1]

    @property
    def normalize(self) -> Callable[[str], str] | None:
        """The function that normalizes a text before it is split; None where there is none, or its time is unknown."""
        normalizer = self._tokenizer.normalizer if self._normalizes_soon else None
        if normalizer is None:
            return None

        def normalize(text: str) -> str:
            _check_unicode(text)
            check_made(len(text) * self._growth, f"{len(text):,}")
            try:
                return str(normalizer.normalize_str(text))
            except BaseException as e:
                raise self._refused(e) from None

        return normalize

    def renamed(self, names: Mapping[str, str]) -> _Library:
        """The same tokenizer with other names of tokens."""
        other = copy.copy(self)
        try:
            other._tokenizer = type(self._tokenizer).from_str(rename(self._tokenizer.to_str(), names))
        except BaseException as e:
            raise self._refused(e) from None
        return other

    def encode_plain(self, text: str, barred: Collection[str]) -> list[int] | None:
        """Return None: these tokens are computed by a tokenizer with other names."""
        return None

    def encode(self, text: str) -> list[int]:
        check_made(len(text) * self._growth, f"{len(text):,}")
        try:
            if self._encodes_soon:
                return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
            encoded = in_time(lambda: self._tokenizer.encode_batch([text], add_special_tokens=False), len(text))
            return list(encoded[0].ids)
        except BaseException as e:
            raise self._refused(e) from None

    def decode(self, ids: Sequence[int]) -> str:
        check_made(ASSUMED * len(ids) * self._decoded_growth, f"{len(ids)} tokens")
        try:
            if self._decodes_soon:
                text = self._tokenizer.decode(ids, skip_special_tokens=True)
            else:
                text = in_time(lambda: self._tokenizer.decode_batch([ids], skip_special_tokens=True), len(ids))[0]
        except BaseException as e:
            raise self._refused(e) from None
        if len(text) > OF_TOKEN * len(ids):
            raise BundleError(f"{self._path} has tokens of more than {OF_TOKEN:,} characters; use another bundle.")
        return text

    def token(self, token_id: int) -> str | None:
        return self._tokenizer.id_to_token(token_id)

    def _refused(self, error: BaseException) -> BaseException:
        """A sentence instead of what the library raises: bare Exceptions, and Rust's panics, which are none."""
        if isinstance(error, KeyboardInterrupt | SystemExit | EdgeError):
            return error
        return BundleError(
            f"{self._path} cannot be read as a tokenizer ({on_one_line(error)}); export or copy the bundle again."
        )


def _check_size(path: Path) -> None:
    try:
        size = path.stat().st_size
    except OSError as e:
        raise BundleError(f"{path} cannot be read: {e.strerror}.") from None
    if size > LARGEST:
        raise BundleError(f"{path} has {size:,} bytes, and no tokenizer may have more than {LARGEST:,}.")


def _unigram(path: Path) -> Tokenizer:
    """A Unigram tokenizer without the library, where the file has one that is known; else the library's."""
    from edge.runtime.text.unigram import read_unigram

    found = None
    with contextlib.suppress(OSError, ValueError, RecursionError):  # the library says what is wrong
        found = read_unigram(path, lambda: _Library(path))
    return found or _Library(path)


class Detokenizer:
    """Turns a stream of token ids into text as soon as characters are whole.

    The pieces add up to what decoding all tokens at once gives. Each token costs decoding a few: those whose text is
    not complete, after the last ones that were, because a token's leading space depends on the token before. silent:
    ids that have no text; nor have those from `size` on: logits may have more entries than the vocabulary, because
    models round the size of their embeddings up.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], silent: frozenset[int], size: float = math.inf) -> None:
        self._decode = decode
        self._silent, self._size = silent, size
        self._before: list[int] = []  # tokens given out last
        self._before_text = ""
        self._pending: list[int] = []
        self._given = 0  # characters of the pending text that were given out

    def push(self, token: int) -> str:
        """Add a token, and return the text that became certain with it; often empty while a character spans tokens."""
        if token in self._silent or token >= self._size:
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
        """Return the text that is left after the last token: an unfinished character as U+FFFD."""
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
    """Finds the first of some strings in streamed text, also across pieces; InputError where one is empty."""

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise InputError("A stop string is empty; give at least one character, or no stop string at all.")
        self._stops = tuple(stops)
        self._held = ""  # an end of the text so far that may be the start of a stop string

    def push(self, text: str) -> tuple[str, bool]:
        """Add text, and return the text that can be shown, and whether a stop string was found, which is left out with
        what follows."""
        if not self._stops:
            return text, False
        text = self._held + text
        found = [at for at in map(text.find, self._stops) if at >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        held = max(overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], False

    def flush(self) -> str:
        """Return the text that was held back, after the last piece."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that starts `stop` without completing it."""
    sizes = range(min(len(text), len(stop) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(stop[:size])), 0)
