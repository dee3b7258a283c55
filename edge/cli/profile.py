"""`edge profile`: what a bundle costs on this device, as a table, JSON or a page; and two profiles side by side."""

from __future__ import annotations

import dataclasses
import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli.export import stages
from edge.cli.reports import check_target, write_report
from edge.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edge.runtime.profile.ops import Step
    from edge.runtime.profile.profile import ProfileOptions
    from edge.runtime.profile.record import Profile

OPS_SHARE, PEAKS_SHARE = 0.15, 0.05  # of the time, where operators are measured


def command(
    target: Annotated[
        Path | None,
        typer.Argument(metavar="BUNDLE", help="The bundle to measure, or the JSON file of a profile to show."),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(metavar="S", help="How long measuring may take; default: 60.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="Threads to compute with; default: one per core, up to 8.")
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(metavar="N", help="Measure up to so many tokens in the KV cache; default: the bundle's."),
    ] = None,
    provider: Annotated[str | None, typer.Option(metavar="NAME", help="Where the graphs run; default: cpu.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile as one JSON object.")] = False,
    ops: Annotated[bool, typer.Option("--ops", help="Measure and show where the time goes, by operator.")] = False,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a trace for Perfetto or chrome://tracing.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with charts, for a browser.")] = None,
    speculate: Annotated[
        bool,
        typer.Option("--speculate", help="Show instead how often each drafter is right, by position, and its gain."),
    ] = False,
    drafters: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            metavar="NAME",
            help="With --speculate, a drafter to measure, such as model=PATH; repeatable; default: all without =.",
        ),
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="A.json B.json", help="Compare two profiles that --json wrote, and measure nothing."),
    ] = None,
) -> None:
    """Measure what a bundle costs on this device: time to first token, time per token, the cost of a step of several
    tokens, long answers, loading, memory, CPU time and, where the system tells, energy.

    The cost curve is kept in the cache folder for later runs. docs/profile.md says what each figure means.
    """
    if drafters and not speculate:
        raise InputError("--drafter says what --speculate measures; give --speculate too, or leave --drafter away.")
    settings = {"seconds": seconds, "threads": threads, "context": context, "provider": provider}
    given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    if given and (compare is not None or (target is not None and target.is_file())):
        raise InputError(
            f"--{next(iter(given))} says how a bundle is measured, and a stored profile is only shown; leave it out."
        )
    if compare is not None:
        if target is not None or ops or trace or html or speculate:
            also = target or ("--ops" if ops else "--trace" if trace else "--html" if html else "--speculate")
            raise InputError(f"--compare takes two profiles, measures nothing, writes no report; leave {also} away.")
        _compare(*compare, as_json)
        return
    if target is None:
        raise InputError("There is nothing to measure; give a bundle, or two profiles with --compare.")
    if speculate:
        if ops or trace or html or target.is_file():
            raise InputError(
                "--speculate answers prompts with a bundle, and writes no report; leave other options away."
            )
        if provider not in (None, "cpu"):
            raise InputError(f"--speculate measures on cpu alone; leave --provider {provider} away.")
        from edge.cli.profile_drafts import profile_drafts

        profile_drafts(target, drafters or (), _options(given), as_json)
        return
    for path in (trace, html):
        if path is not None:
            check_target(path)
    story: Sequence[Step] = ()
    if target.is_file():
        found = _read(target, ops)
    else:
        found, story = _measure(target, _options(given), with_ops=ops or trace is not None or html is not None)
    _write(found, story, trace, html)
    if as_json:
        _print(found.to_json())
        return
    from edge.cli.profile_tables import show

    show(found)
    if ops:
        from edge.cli.profile_ops import show_ops

        show_ops(found)


def _read(path: Path, with_ops: bool) -> Profile:
    """A profile that was measured before, here or elsewhere."""
    from edge.runtime.profile.record import parse, read_text

    found = parse(read_text(path), str(path))
    if with_ops and not found.ops:
        raise InputError(f"{path} holds no operators; profile the bundle with --ops.")
    return found


def _options(given: dict[str, Any]) -> ProfileOptions:
    from edge.runtime.profile.profile import ProfileOptions

    return ProfileOptions(**given)


def _measure(path: Path, options: ProfileOptions, *, with_ops: bool) -> tuple[Profile, Sequence[Step]]:
    """The profile of a bundle, and with its operators a run of them to be told as a trace."""
    from edge.bundle import open_bundle
    from edge.runtime.profile.curve import store
    from edge.runtime.profile.profile import profile

    story: Sequence[Step] = ()
    with stages() as (progress, say):
        shorter = dataclasses.replace(options, seconds=max(1.0, options.seconds * (1 - OPS_SHARE - PEAKS_SHARE)))
        found = profile(path, shorter if with_ops else options, progress=progress)
        try:
            store(found)
        except OSError as e:
            say(f"The cost curve could not be kept for later runs: {e.strerror or e}.")
        if with_ops:
            from edge.runtime.profile import ops, peaks

            gc.collect()  # the engine: operators are watched in sessions of their own
            measured = ops.measure(
                open_bundle(path),
                threads=options.threads,
                limit=options.context,
                seconds=options.seconds * OPS_SHARE,
                progress=lambda what: progress(0, 0, what),
            )
            progress(0, 0, "what this machine can do at best")
            best = peaks.measure(options.threads, seconds=options.seconds * PEAKS_SHARE)
            notes = [*found.notes, *measured.notes]
            found, story = dataclasses.replace(found, ops=measured.ops, peaks=best, notes=notes), measured.story
    return found, story


def _write(profile: Profile, story: Sequence[Step], trace: Path | None, html: Path | None) -> None:
    """Write the reports that were asked for."""
    if trace is not None:
        from edge.runtime.profile.trace import trace_json

        write_report(trace, trace_json(profile, story))
    if html is not None:
        from edge.runtime.profile.html import page

        write_report(html, page(profile))


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
