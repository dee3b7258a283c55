"""`edge profile`: what a bundle costs on this device, as a table, JSON or a page; and two profiles side by side."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge.cli.export import stages
from edge.errors import InputError

if TYPE_CHECKING:
    from edge.runtime.profile.record import Profile


def command(
    target: Annotated[
        Path | None,
        typer.Argument(metavar="BUNDLE", help="The bundle to measure, or the JSON file of a profile to show."),
    ] = None,
    seconds: Annotated[float, typer.Option(metavar="S", help="How long measuring may take.")] = 60.0,
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="Threads to compute with; default: one per core, up to 8.")
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(metavar="N", help="Measure up to so many tokens in the KV cache; default: the bundle's."),
    ] = None,
    provider: Annotated[str, typer.Option(help="Where the graphs run.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile as one JSON object.")] = False,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="A.json B.json", help="Compare two profiles that --json wrote, and measure nothing."),
    ] = None,
) -> None:
    """Measure what a bundle costs on this device: time to first token, time per token, the cost of a step of several
    tokens, long answers, loading, memory, CPU time and, where the system tells, energy.

    The cost curve is kept in the cache folder for later runs. docs/profile.md says what each figure means.
    """
    if compare is not None:
        if target is not None:
            raise InputError(f"--compare takes two profiles and measures nothing; leave {target} away.")
        _compare(*compare, as_json)
        return
    if target is None:
        raise InputError("There is nothing to measure; give a bundle, or two profiles with --compare.")
    if target.is_file():
        from edge.runtime.profile.record import parse, read_text

        found = parse(read_text(target), str(target))
    else:
        found = _measure(target, seconds, threads, context, provider)
    if as_json:
        _print(found.to_json())
        return
    from edge.cli.profile_tables import show

    show(found)


def _measure(bundle: Path, seconds: float, threads: int | None, context: int | None, provider: str) -> Profile:
    from edge.runtime.profile.curve import store
    from edge.runtime.profile.profile import ProfileOptions, profile

    options = ProfileOptions(seconds, threads, context, provider)
    with stages() as (progress, say):
        found = profile(bundle, options, progress=progress)
        try:
            store(found)
        except OSError as e:
            say(f"The cost curve could not be kept for later runs: {e.strerror or e}.")
    return found


def _compare(first: Path, second: Path, as_json: bool) -> None:
    from edge.runtime.profile.compare import compare, parse_both
    from edge.runtime.profile.record import read_text

    a, b = parse_both(read_text(first), str(first), read_text(second), str(second))
    comparison = compare(a, b)
    if as_json:
        import json

        _print(json.dumps(comparison.summary(), indent=1, ensure_ascii=False) + "\n")
        return
    from edge.cli.profile_tables import show_comparison

    show_comparison(comparison, str(first), str(second))


def _print(text: str) -> None:
    """Write to standard output, which may be a file on a full disk."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as e:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes the rest again when it ends
        raise InputError(f"The profile could not be written to standard output: {e.strerror}.") from None
