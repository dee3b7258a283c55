"""`edge pull`: fetch a model into the cache."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from edge.cli.arguments import Parser
from edge.errors import CatalogError

if TYPE_CHECKING:
    from edge.catalog import Entry

NAME = "pull"
HELP = "Fetch a model into the cache."


def add_arguments(parser: Parser) -> None:
    named = "a name of the catalog, org/NAME or org/NAME:Q4_K_M on the Hugging Face hub, or the address of a .gguf file"
    parser.add_argument("name", metavar="NAME", help=named)
    add = parser.options()
    add("--accept-license", "accept the model's terms, which is remembered")


def command(args: argparse.Namespace) -> None:
    """Fetch a model into the cache, check it, and print where it lies; `edge run NAME` makes a bundle of it."""
    pull(args.name, accept_license=args.accept_license)


def pull(name: str, *, accept_license: bool) -> None:
    """Fetch a model into the cache, its terms shown first where they are to be accepted, and print where it lies."""
    from edge import catalog, names
    from edge.cli.fetching import fetch_shown
    from edge.cli.run.recorded import Record, recorded, remember

    if (named := names.find(name)) is None:
        if Path(name).exists():
            raise CatalogError(f"{name} is here already; edge run {name} makes a bundle of it.")
        named = names.InCatalog(catalog.resolve(name))  # which says what there is
    if isinstance(named, names.InCatalog):
        _accept(named.entry, accept_license)
    path = fetch_shown(named)
    known = recorded(named.name)
    same = known is not None and known.path == str(path)
    remember(Record(named.name, str(path), known.bundle if known is not None and same else None))
    print(path)


def _accept(entry: Entry, accept_license: bool) -> None:
    from edge import catalog

    if entry.terms is not None and (accept_license or not catalog.accepted(entry)):
        print(entry.terms.text, file=sys.stderr)
        if entry.terms.url not in entry.terms.text:
            print(entry.terms.url, file=sys.stderr)
        if not accept_license:
            raise CatalogError(
                f"{entry.title} comes under these terms, which must be accepted first: "
                f"edge models pull {entry.name} --accept-license"
            )
    if accept_license:
        catalog.accept(entry)
