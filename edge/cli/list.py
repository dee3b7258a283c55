"""`edge list`: the bundles and models that are here."""

from __future__ import annotations

import argparse
import datetime
from typing import Any

from edge.cli.arguments import Parser, add_json

NAME = "list"
HELP = "List the bundles and models that are here."


def add_arguments(parser: Parser) -> None:
    add_json(parser.options(), "a JSON list")


def command(args: argparse.Namespace) -> None:
    """List what the cache has: the bundles that edge run made, and the models that were fetched, those that were used
    last first. edge run, edge show and edge rm take these names."""
    from edge.cli.run.here import Here, everything, size_of
    from edge.cli.tables import console, print_json, shown_bytes, table
    from edge.home import cache_dir

    found = everything()

    def date(each: Here) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(each.used).astimezone()

    if args.json:
        objects: list[dict[str, Any]] = [
            {
                **{"name": each.name, "kind": each.kind, "what": each.what, "bytes": each.bytes},
                **{"used": date(each).isoformat(timespec="seconds"), "path": str(each.path)},
            }
            for each in found
        ]
        print_json(objects)
        return
    out = console()
    if not found:
        out.print("Nothing is here yet; edge models lists what edge pull NAME and edge run NAME fetch.")
        return
    rows = table("", "Name", "Kind", "What", "Size", "Used", text={"Name", "Kind", "What", "Used"}, compact=True)
    for each in found:
        rows.add_row(each.name, each.kind, each.what, shown_bytes(each.bytes), f"{date(each):%Y-%m-%d %H:%M}")
    out.print(rows)
    packed = size_of(cache_dir() / "packed")
    more = f", of which {shown_bytes(packed)} are weights packed for faster starts" if packed else ""
    out.print(f"{cache_dir()} has {shown_bytes(size_of(cache_dir()))} in all{more}")
