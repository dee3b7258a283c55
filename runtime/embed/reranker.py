"""`Reranker`: a loaded model that ranks documents by how well they answer a query."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.errors import InputError
from edge.runtime.background import Background
from edge.runtime.embed.encoded import Encoded, paired
from edge.runtime.embed.engine import EmbedEngine
from edge.runtime.embed.rerank_options import RerankOptions
from edge.runtime.embed.text_model import TextModel
from edge.runtime.keywords import RerankKeywords
from edge.runtime.options import shown, with_keywords
from edge.runtime.text.tokenizer import Text

DEFAULTS = RerankOptions()


@dataclass(frozen=True)
class Ranked:
    """A document's place in what was given, and its score: the higher, the better it answers the query."""

    index: int
    score: float


@dataclass(frozen=True)
class ReadPairs:
    """A query with each document as the model reads them. cut: how many documents were cut."""

    pairs: list[Encoded]
    cut: int

    @property
    def tokens(self) -> int:
        """Tokens of all pairs."""
        return sum(len(pair.ids) for pair in self.pairs)


class Reranker(TextModel):
    """A model in memory that scores pairs of a query and a document. `edge.load` makes one. Several threads may use it
    at a time.

    Args:
        bundle: the opened bundle.
        engine: the engine over it, which may still be loading.
        text: its tokenizer.

    Raises:
        InputError: the bundle's model scores no pairs.
    """

    def __init__(self, bundle: Bundle, engine: EmbedEngine | Background[EmbedEngine], text: Text) -> None:
        if bundle.manifest.embedding is None or bundle.manifest.embedding.pair is None:
            raise InputError(f"{bundle.manifest.name} ranks no documents.")
        super().__init__(bundle, engine, text)

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        options: RerankOptions | None = None,
        *,
        interrupted: Callable[[], bool] = lambda: False,
        **keywords: Unpack[RerankKeywords],
    ) -> list[Ranked]:
        """Return documents, the best first; of equal ones the earlier. A score is the same whichever documents are next
        to it, in every bit where our kernels run.

        Args:
            query: the text that documents are to answer.
            documents: any number of texts.
            options: how many are returned, what scores are, and whether long documents are cut.
            interrupted: is asked before each step; True ends the work with an InputError.
            keywords: fields of `RerankOptions`, which go before those of `options`.

        Raises:
            InputError: what is no text, or is longer than the model takes.
        """
        own = with_keywords(options or DEFAULTS, keywords)
        return self.ranked(self.read(query, documents, own), own, interrupted=interrupted)

    def read(
        self, query: str, documents: Sequence[str], options: RerankOptions = DEFAULTS, *, first: int = 0
    ) -> ReadPairs:
        """Return the query with each document, as the model reads them. first: the place of the first document, for
        sentences.

        Raises:
            InputError: as `rank`.
        """
        if isinstance(documents, str | bytes) or not isinstance(documents, Sequence):
            raise InputError(f"Documents are texts in a list, not {shown(documents)}.")
        room, form = self.engine.room.context, self.format
        asked = self.encode(query, "the query")
        if form.frame + len(asked) >= room:
            raise self.too_long("The query", form.frame + len(asked))
        found, cut = list[Encoded](), 0
        for place, document in enumerate(documents, first):
            named = f"document {place + 1}"
            ids = self.encode(document, named)
            tokens = form.frame + len(asked) + len(ids)
            if tokens > room and not options.truncate:
                raise self.too_long(f"The query with {named}", tokens)
            cut += tokens > room
            found.append(paired(form, asked, ids, room))
        return ReadPairs(found, cut)

    def logits(self, read: ReadPairs, *, interrupted: Callable[[], bool] = lambda: False) -> NDArray[np.float32]:
        """Return the scores of pairs that `read` made as the model makes them, [pairs] float32."""
        return self.run(read.pairs, interrupted=interrupted)[:, 0]

    def ranked(
        self, read: ReadPairs, options: RerankOptions = DEFAULTS, *, interrupted: Callable[[], bool] = lambda: False
    ) -> list[Ranked]:
        """Return the documents of pairs that `read` made, the best first."""
        return ranked(self.logits(read, interrupted=interrupted), options)


def ranked(logits: NDArray[np.float32], options: RerankOptions = DEFAULTS) -> list[Ranked]:
    """Return places and scores, the best first, of the logits [documents]."""
    order = np.argsort(-logits, kind="stable")[: options.top_n]
    raw = logits.astype(np.float64)
    scores = raw if options.raw_scores else 1 / (1 + np.exp(-np.clip(raw, -700, 700)))
    return [Ranked(int(place), float(scores[place])) for place in order]
