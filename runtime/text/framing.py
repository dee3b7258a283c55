"""What a model from text to text is given: an input's tokens, and what the model's format puts around them."""

from __future__ import annotations

from edge.errors import InputError
from edge.manifest import TextFormat
from edge.runtime.text.languages import find_language
from edge.runtime.text.tokenizer import Text


class Framing:
    """A model's format at work.

    Args:
        form: the format.
        text: the model's tokenizer.
        forced: the token that every output begins with, where there is one.
    """

    def __init__(self, form: TextFormat, text: Text, forced: int | None) -> None:
        self._form, self._text, self._forced = form, text, forced

    def check(self, source: str | None, target: str | None) -> None:
        """Raise InputError where the model does not have these languages: before there is a text."""
        self.start(target)
        if self._form.target_in_source and target is not None:
            self._target(target)
        if source is not None or self._form.source_at:
            self._source(source)

    def start(self, target: str | None) -> list[int]:
        """What the decoder begins with, for an output in this language."""
        form = self._form
        prompt = list(form.decoder_start)
        if form.target_at_start or (target is not None and not form.target_in_source):
            prompt.append(self._target(target))
        return prompt if self._forced is None else [*prompt, self._forced]

    def tokens(self, text: str, source: str | None, target: str | None) -> tuple[list[int], list[int]]:
        """The tokens of a text as the encoder takes them, and those of the text alone.

        Raises:
            InputError: the text is empty, or a language that the model does not have.
        """
        if not text.strip():
            raise InputError("The text is empty; give the model something to work on.")
        form = self._form
        bare = self._text.encode(text)
        framed = [*form.prefix, *bare, *form.suffix]
        if form.target_in_source:
            framed = self._to_target(bare, framed, target)
        if form.source_at or source is not None:
            language = self._source(source)
            framed = [language, *framed] if form.source_at == "prefix" else [*framed, language]
        return framed, bare

    def _target(self, code: str | None) -> int:
        return find_language(self._form.languages, code, self._form.target, "target")

    def _source(self, code: str | None) -> int:
        form = self._form
        if form.languages and not form.source_at:
            raise InputError("This model finds out the source language itself; omit it.")
        return find_language(form.languages, code, form.source, "source")

    def _to_target(self, bare: list[int], framed: list[int], code: str | None) -> list[int]:
        """The input with the target's token in front, which a text may have brought along."""
        own = bare[0] if bare and bare[0] in self._form.languages.values() else None
        if code is None and (own is not None or len(self._form.languages) == 1):
            return framed
        language = self._target(code)
        if own not in (None, language):
            raise InputError(f"The text asks for {self._text.token(bare[0])}, and the target language is {code!r}.")
        return framed if own is not None else [language, *framed]
