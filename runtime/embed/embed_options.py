"""The options of making vectors of texts."""

from __future__ import annotations

from dataclasses import dataclass

from edge.embedding_format import MOST_VECTOR
from edge.runtime.options import Options, flag, integer, option, text, unless_none


@dataclass(frozen=True)
class EmbedOptions(Options):
    """Options of `Embedder.embed`; docs/reference/options.md says what each field means.

    Raises:
        InputError: a value out of its range.
    """

    prompt: str | None = option(
        None,
        unless_none(text("prompt")),
        flag="--prompt NAME",
        heading="vectors",
        help="which of the model's prompts stands before each text, such as query (default: the model's own)",
        about="the name of the prompt, of those that the model's makers set, which stands before each text, such as "
        "`query`; default: the one that they use where none is named, mostly none",
    )
    dimensions: int | None = option(
        None,
        unless_none(integer("number of dimensions", "1 or more", least=1, most=MOST_VECTOR)),
        flag="--dimensions N",
        heading="vectors",
        help="the first N numbers of each vector, at length 1 again (default: all)",
        about="the first numbers of each vector, at length 1 again where the model's are, of models that were trained "
        "for it; default: all",
    )
    truncate: bool = option(
        False,
        flag("option truncate"),
        flag="--truncate",
        heading="vectors",
        help="cut texts that are longer than the model takes, which are refused otherwise",
    )
