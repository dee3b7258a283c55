"""`edge show`: the figures of a bundle by the name of its model."""

from __future__ import annotations

import argparse
from pathlib import Path

from edge.cli.arguments import Parser, add_json
from edge.errors import InputError

NAME = "show"
HELP = "Show a model by its name: its bundle's figures, or what the catalog says."


def add_arguments(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="as edge list and edge models show it, or a bundle")
    add_json(parser.options())


def command(args: argparse.Namespace) -> None:
    """Show a model by its name: the figures of the bundle that was made of it, as edge inspect does; or what the
    catalog says, where there is none. Nothing is fetched or made."""
    from edge import names
    from edge.bundle import open_bundle
    from edge.cli.inspect import show_bundle
    from edge.cli.models import show_entry
    from edge.cli.rm import of_path
    from edge.cli.run.here import named_bundles
    from edge.cli.run.source import is_model, missing

    path = Path(args.name)
    if path.is_dir() and not is_model(path):
        show_bundle(open_bundle(args.name), args.json)
        return
    if is_model(path):
        bundles = of_path(path)
        if not bundles:
            raise InputError(f"There is no bundle of {path} yet; edge run {path} makes one.")
        show_bundle(bundles[0], args.json)
        return
    named = names.find(args.name)
    canonical = args.name if named is None else named.name
    if bundles := named_bundles(canonical):
        for bundle in bundles:
            show_bundle(bundle, args.json)
    elif isinstance(named, names.InCatalog):
        show_entry(named.entry, args.json)
    elif named is not None:
        raise InputError(f"There is no bundle of {canonical} yet; edge run {canonical} makes one.")
    else:
        raise InputError(missing(args.name))
