"""`edge profile --skip`: what skip policies bring on this device, and what they cost this bundle."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from edge.bundle import Bundle
from edge.cli.answering import open_answering
from edge.cli.export import stages
from edge.cli.tables import console, print_json, table
from edge.errors import InputError
from edge.runtime.costs.record import Skipped
from edge.runtime.engine.variant import OFF
from edge.runtime.profile.profile import ProfileOptions, settled
from edge.runtime.profile.skipped import check, measure
from edge.runtime.skip.loss import shown


def profile_skipped(path: Path, skips: str, options: ProfileOptions, as_json: bool) -> None:
    """Measure policies and print a table or JSON."""
    bundle = open_answering(path)
    options = settled(bundle, options)
    names = checked(bundle, skips, options)
    bundle.check_files_once()
    with stages() as (progress, _):
        found = measure(bundle, names, options, telling(progress))
    if as_json:
        print_json([dataclasses.asdict(each) for each in found])
        return
    show_skipped(found, bundle.manifest.name, console())


def checked(bundle: Bundle, skips: str, options: ProfileOptions) -> list[str]:
    """The policies whose names stand with commas between them; InputError where one cannot be measured."""
    names = list(dict.fromkeys(name.strip() for name in skips.split(",")))
    if not all(names):
        raise InputError(f"--skip {skips!r} names an empty policy; write them like unified:0.1,skipdecode:24-30.")
    check(bundle, names, options)
    return names


def telling(progress: Callable[[int, int, str], None]) -> Callable[[int, int], None]:
    return lambda done, total: progress(done, total, "answering with layers left out")


def show_skipped(found: Sequence[Skipped], name: str, out: Console) -> None:
    """Print policies' figures as a table, and what its columns are."""
    title = f"{name}: answers of {found[0].answer} tokens"
    rows = table(title, "Policy", "Layers", "ms", "tok/s", "Speed", "Same", "Perplexity", "edge run", text=1)
    for each in found:
        lost = f"{each.same / max(1, each.tokens):.0%}", f"{shown(each.times_perplexity)} times"
        rows.add_row(
            each.skip,
            f"{each.layers:.1f}",
            f"{each.ms:.3g}",
            f"{each.tokens_per_s:.0f}",
            f"{each.speed:.2f}",
            *(("", "", "") if each.skip == OFF else (*lost, "refuses" if each.ruins else "answers")),
        )
    out.print(rows)
    print(
        "Layers: that run for a token. Speed: times the whole decoder's (off), in turns. Same: tokens of the bundle's "
        "own answers that stay the likeliest. Perplexity: of such text, times the whole decoder's."
    )
    if any(each.ruins for each in found):
        print("Refuses: unless it is asked with --skip-anyway as well.")
