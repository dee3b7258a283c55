"""`edge rerank`: documents by how well they answer a query, as JSON lines."""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path

from edge.cli.arguments import Parser, add_fields, taken
from edge.cli.of_embedders import add_machine, open_of_kind
from edge.cli.texts import given_texts
from edge.embedding_format import RERANKER
from edge.errors import InputError

NAME = "rerank"
HELP = "Rank documents by how well they answer a query."
AT_A_TIME = 4096  # documents whose tokens are in memory


def add_arguments(parser: Parser) -> None:
    from edge.runtime.embed.rerank_options import RerankOptions

    model = "a bundle of a model that ranks, a model's folder or a name, as edge run takes them"
    parser.add_argument("model", metavar="MODEL", help=model)
    parser.add_argument("query", metavar="QUERY", help="the text that documents are to answer")
    documents = "documents (default: the lines of --file, or of standard input)"
    parser.add_argument("documents", metavar="DOCUMENT", nargs="*", help=documents)
    add = parser.options("documents and ranking")
    add("-f/--file FILE", "a file with a document in each line; '-': standard input", Path)
    add_fields(add, "ranking", RerankOptions)
    add_machine(parser, "maximum tokens of the query with a document (default: the bundle's)")


def command(args: argparse.Namespace) -> None:
    """Rank documents by how well they answer a query: of the arguments, of the lines of a file, or of those of standard
    input. A line of JSON for each, the best first, has its place, its score and its text. Figures go to standard error.

    A document that is with the query longer than the model takes is refused, unless --truncate has it cut. A score is
    the same whichever documents are next to it.
    """
    import numpy as np

    from edge.cli.run.terminal import note
    from edge.runtime.embed.rerank_options import RerankOptions
    from edge.runtime.embed.reranker import Reranker, ranked
    from edge.runtime.load import open_embedder
    from edge.runtime.load_options import LoadOptions

    documents = given_texts(args.documents, args.file)
    options = RerankOptions(**taken(args, RerankOptions))
    bundle = open_of_kind(args.model, RERANKER)
    with open_embedder(bundle, LoadOptions(**taken(args, LoadOptions))) as model:
        assert isinstance(model, Reranker), "its manifest says so"
        model.wait()
        started, texts, logits, tokens, cut = time.perf_counter(), list[str](), [], 0, 0
        while window := list(itertools.islice(documents, AT_A_TIME)):
            read = model.read(args.query, window, options, first=len(texts))
            logits.append(model.logits(read))
            texts, tokens, cut = texts + window, tokens + read.tokens, cut + read.cut
        if not texts:
            raise InputError("There is no document to rank.")
        for found in ranked(np.concatenate(logits), options):
            line = {"index": found.index, "relevance_score": found.score, "document": texts[found.index]}
            print(json.dumps(line, ensure_ascii=False))
        few = "1 document" if len(texts) == 1 else f"{len(texts):,} documents"
        note(f"{few}, {tokens:,} tokens; {len(texts) / (time.perf_counter() - started):,.1f} documents/s")
        if cut:
            was = "was" if cut == 1 else "were"
            note(
                f"{cut:,} of {few} {was} with the query longer than {model.engine.room.context} tokens, and {was} cut."
            )
