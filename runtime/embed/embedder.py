"""`Embedder`: a loaded model that makes vectors of texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.errors import InputError
from edge.runtime.background import Background
from edge.runtime.embed.embed_options import EmbedOptions
from edge.runtime.embed.encoded import Encoded
from edge.runtime.embed.engine import EmbedEngine
from edge.runtime.embed.text_model import TextModel
from edge.runtime.keywords import EmbedKeywords
from edge.runtime.options import shown, with_keywords
from edge.runtime.text.tokenizer import Text

DEFAULTS = EmbedOptions()
SMALLEST = 1e-12  # length of a vector that is brought to length 1


@dataclass(frozen=True)
class Read:
    """Texts as the model reads them: the token ids of each, and how many of them were cut."""

    ids: list[list[int]]
    cut: int

    @property
    def tokens(self) -> int:
        """Tokens of all texts."""
        return sum(map(len, self.ids))


class Embedder(TextModel):
    """A model for vectors in memory. `edge.load` makes one. Several threads may use it at a time.

    Args:
        bundle: the opened bundle.
        engine: the engine over it, which may still be loading.
        text: its tokenizer.

    Raises:
        InputError: the bundle's model makes no vectors.
    """

    def __init__(self, bundle: Bundle, engine: EmbedEngine | Background[EmbedEngine], text: Text) -> None:
        if bundle.manifest.embedding is None or bundle.manifest.embedding.pair is not None:
            raise InputError(f"{bundle.manifest.name} makes no vectors of texts.")
        super().__init__(bundle, engine, text)

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return self.format.width

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts that the model's makers set, by name."""
        return dict(self.format.prompts)

    def embed(
        self,
        texts: str | Sequence[str],
        options: EmbedOptions | None = None,
        *,
        interrupted: Callable[[], bool] = lambda: False,
        **keywords: Unpack[EmbedKeywords],
    ) -> NDArray[np.float32]:
        """Return a vector of each text, [texts, width] float32. A vector is the same whichever texts are next to it,
        in every bit where our kernels run.

        Args:
            texts: any number of texts, or one.
            options: prompt, dimensions, and whether long texts are cut.
            interrupted: is asked before each step; True ends the work with an InputError.
            keywords: fields of `EmbedOptions`, which go before those of `options`.

        Raises:
            InputError: no text, one that is longer than the model takes, or an option that the model does not have.
        """
        own = with_keywords(options or DEFAULTS, keywords)
        return self.vectors(self.read(texts, own).ids, own, interrupted=interrupted)

    def check(self, options: EmbedOptions) -> None:
        """Raise InputError where options do not fit the model."""
        if options.prompt is not None and options.prompt not in self.format.prompts:
            known = ", ".join(self.format.prompts) or "none"
            raise InputError(
                f"{self.bundle.manifest.name} has no prompt {shown(options.prompt)}; it has {known[:500]}."
            )
        if options.dimensions is not None and options.dimensions > self.width:
            raise InputError(
                f"{self.bundle.manifest.name} makes vectors of {self.width} numbers, of which {options.dimensions} "
                "cannot be taken."
            )

    def read(self, texts: str | Sequence[str], options: EmbedOptions = DEFAULTS, *, first: int = 0) -> Read:
        """Return the token ids of texts, as the model reads them. first: the place of the first one, for sentences.

        Raises:
            InputError: as `embed`.
        """
        self.check(options)
        listed = [texts] if isinstance(texts, str) else texts
        if isinstance(listed, bytes) or not isinstance(listed, Sequence):
            raise InputError(f"Vectors are made of texts in a list, not of {shown(texts)}.")
        name = self.format.prompt if options.prompt is None else options.prompt
        before = "" if name is None else self.format.prompts[name]
        found = [self.encode(text, f"text {place + 1}", before) for place, text in enumerate(listed, first)]
        return self.framed(found, options, first=first)

    def framed(self, texts: Sequence[Sequence[int]], options: EmbedOptions = DEFAULTS, *, first: int = 0) -> Read:
        """Put the model's own tokens around those of texts.

        Raises:
            InputError: a text is longer than the model takes, is empty, or has a token that is in no vocabulary.
        """
        form, room, cut, found = self.format, self.engine.room, 0, list[list[int]]()
        most, vocab = room.context - form.frame, self.bundle.manifest.dims.vocab_size
        alone = len(texts) == 1 and not first
        for place, ids in enumerate(texts, first):
            own, named = list(ids), "The text" if alone else f"Text {place + 1}"
            if len(own) > most:
                if not options.truncate:
                    raise self.too_long(named, len(own) + form.frame)
                own, cut = own[:most], cut + 1
            if own and not 0 <= min(own) <= max(own) < vocab:
                wrong = next(token for token in own if not 0 <= token < vocab)
                raise InputError(f"{named} has the token {wrong}, and the vocabulary has {vocab}.")
            framed = [*form.prefix, *own, *form.suffix]
            if not framed:
                raise InputError(f"{named} has no tokens; give it some words.")
            found.append(framed)
        return Read(found, cut)

    def vectors(
        self,
        texts: Sequence[Sequence[int]],
        options: EmbedOptions = DEFAULTS,
        *,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> NDArray[np.float32]:
        """Return the vectors of token ids that `read` or `framed` made, [texts, width] float32."""
        self.check(options)
        return self._shortened(self.run([*map(Encoded, texts)], interrupted=interrupted), options.dimensions)

    def _shortened(self, made: NDArray[np.float32], dimensions: int | None) -> NDArray[np.float32]:
        if dimensions is None or dimensions == self.width:
            return made
        cut = np.ascontiguousarray(made[:, :dimensions])
        if not self.format.normalized:
            return cut
        shorter: NDArray[np.float32] = cut / np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), SMALLEST)
        return shorter.astype(np.float32, copy=False)
