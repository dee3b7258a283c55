"""Token ids of a text, or of a pair of texts, as a model reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from edge.embedding_format import EmbeddingFormat


class Encoded(NamedTuple):
    """Token ids, with those around. second: of a pair, the place of the second text's first token; 0: there is one."""

    ids: Sequence[int]
    second: int = 0


def paired(form: EmbeddingFormat, query: Sequence[int], document: Sequence[int], room: int) -> Encoded:
    """The ids of a query and of a document with the model's own around and between them, of which the document is cut
    where all together would be more than `room`."""
    assert form.pair is not None
    left = room - form.frame - len(query)
    before = [*form.prefix, *query, *form.pair.between]
    return Encoded([*before, *document[: max(0, left)], *form.suffix], len(before))
