"""Inputs of a model from text to text: an input's tokens, and the tokens that the model's format puts around them."""

from __future__ import annotations

from functools import cached_property

from edge.errors import InputError
from edge.manifest import Manifest
from edge.runtime.text.languages import find_language
from edge.runtime.text.passages import Passages, Split, splitter
from edge.runtime.text.tokenizer import Text


class Framing:
    """Applies a model's format to its inputs. forced: the token that every output begins with, where there is one."""

    def __init__(self, manifest: Manifest, text: Text, forced: int | None) -> None:
        assert manifest.text is not None
        self._manifest, self._format, self._text, self._forced = manifest, manifest.text, text, forced

    @cached_property
    def _split(self) -> Split | None:
        return splitter(self._manifest, self._text)

    def passages(self, text: str) -> Passages | None:
        """Split a text into passages that the model translates one after the other; None where it takes all of it."""
        return None if self._split is None or not isinstance(text, str) else self._split(text)

    def check(self, source: str | None, target: str | None) -> None:
        """Raise InputError where the model does not have these languages, before there is a text."""
        self.start(target)
        if self._format.target_in_source and target is not None:
            self._target(target)
        if source is not None or self._format.source_at:
            self._source(source)

    def start(self, target: str | None) -> list[int]:
        """Return the first tokens of the decoder, for an output in this language."""
        format = self._format
        prompt = list(format.decoder_start)
        if format.target_at_start or (target is not None and not format.target_in_source):
            prompt.append(self._target(target))
        return prompt if self._forced is None else [*prompt, self._forced]

    def tokens(self, text: str, source: str | None, target: str | None) -> tuple[list[int], list[int]]:
        """Return the tokens of a text as the encoder takes them, and those of the text alone; InputError for an empty
        text or an unknown language."""
        if not text.strip():
            raise InputError("The text is empty; give the model something to work on.")
        format = self._format
        bare = self._text.encode_content(text)
        framed = [*format.prefix, *bare, *format.suffix]
        if format.target_in_source:
            framed = self._to_target(bare, framed, target)
        if format.source_at or source is not None:
            language = self._source(source)
            framed = [language, *framed] if format.source_at == "prefix" else [*framed, language]
        return framed, bare

    def _target(self, code: str | None) -> int:
        return find_language(self._format.languages, code, self._format.target, "target")

    def _source(self, code: str | None) -> int:
        format = self._format
        if format.languages and not format.source_at:
            raise InputError("This model finds out the source language itself; omit it.")
        return find_language(format.languages, code, format.source, "source")

    def _to_target(self, bare: list[int], framed: list[int], code: str | None) -> list[int]:
        """The input with the target's token in front, which the text may have already."""
        own = bare[0] if bare and bare[0] in self._format.languages.values() else None
        if code is None and (own is not None or len(self._format.languages) == 1):
            return framed
        language = self._target(code)
        if own not in (None, language):
            raise InputError(f"The text asks for {self._text.token(bare[0])}, and the target language is {code!r}.")
        return framed if own is not None else [language, *framed]
