"""The options of ranking documents by how well they answer a query."""

from __future__ import annotations

from dataclasses import dataclass

from edge.runtime.options import LARGEST, Options, flag, integer, option, unless_none


@dataclass(frozen=True)
class RerankOptions(Options):
    """Options of `Reranker.rank`; docs/reference/options.md says what each field means.

    Raises:
        InputError: a value out of its range.
    """

    top_n: int | None = option(
        None,
        unless_none(integer("number of documents", "1 or more", least=1, most=LARGEST)),
        flag="--top N",
        heading="ranking",
        help="the best N documents (default: all)",
    )
    raw_scores: bool = option(
        False,
        flag("option raw_scores"),
        flag="--raw-scores",
        heading="ranking",
        help="scores as the model makes them, any numbers (default: from 0 to 1, by the logistic function)",
    )
    truncate: bool = option(
        False,
        flag("option truncate"),
        flag="--truncate",
        heading="ranking",
        help="cut documents that are with the query longer than the model takes, which are refused otherwise",
    )
