"""What `edge embed` and `edge rerank` share: options of the machine, and bundles of their own kinds alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge.cli.arguments import Parser, add_field
from edge.embedding_format import EMBEDDER, RERANKER
from edge.errors import InputError

if TYPE_CHECKING:
    from edge.bundle import Bundle

# What models of other kinds do not do, and which command uses models of this one.
WORK = {
    EMBEDDER: ("makes no vectors", "edge embed makes vectors"),
    RERANKER: ("ranks no documents", "edge rerank ranks documents"),
}


def add_machine(parser: Parser, context: str) -> None:
    """Add the options of how a model is loaded. context: help of --context."""
    from edge.runtime.load_options import LoadOptions

    add = parser.options("machine")
    for name in ("threads", "provider", "strict", "memory"):
        add_field(add, LoadOptions, name)
    add_field(add, LoadOptions, "context", context)


def open_of_kind(model: str, kind: str) -> Bundle:
    """Open a bundle, or that of a model. Errors are those of `open_source`; InputError where it is of another kind."""
    from edge.cli.run.source import open_source
    from edge.runtime.options import kind_of

    bundle = open_source(model)
    if (found := kind_of(bundle.manifest)) != kind:
        other = WORK[found][1] if found in WORK else "edge run answers"
        raise InputError(f"{bundle.manifest.name} {WORK[kind][0]}; {other} with it.")
    return bundle
