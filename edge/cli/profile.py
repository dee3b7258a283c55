"""`edge profile`: what a bundle costs on this device, as a table, JSON or a page; and two profiles side by side."""

from __future__ import annotations

import argparse
import dataclasses
import gc
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.cli.arguments import Parser, add_field, add_json
from edge.cli.export import stages
from edge.cli.reports import check_target, write_report
from edge.cli.tables import print_json
from edge.errors import InputError
from edge.runtime.providers import AUTO, BEST, open_provider

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edge.runtime.costs.record import Profile
    from edge.runtime.profile.ops import ProfiledStep
    from edge.runtime.profile.profile import ProfileOptions

NAME = "profile"
HELP = "Measure what a bundle costs on this device; compare two profiles."
OPS_SHARE, PEAKS_SHARE = 0.15, 0.05  # of the time, where operators are measured
SKIP_SHARE = 0.2  # where policies are


def add_arguments(parser: Parser) -> None:
    from edge.runtime.load_options import LoadOptions

    target = "the bundle to measure, or the JSON file of a profile to show"
    parser.add_argument("target", metavar="BUNDLE", type=Path, nargs="?", help=target)

    add = parser.options("how it is measured")
    add("--seconds S", "how long measuring may take (default: 60)", float)
    add_field(add, LoadOptions, "threads")
    room = "maximum tokens in the KV cache (default: the bundle's, in at most half of the memory)"
    add_field(add, LoadOptions, "context", room)
    add_field(add, LoadOptions, "provider", default=AUTO)
    add_field(add, LoadOptions, "strict")
    add("--ops", "measure and show where the time goes, by operator")
    add("--speculate", "show instead the acceptance rate of each drafter, by position, and its gain")
    drafter = "with --speculate, a drafter to measure, such as model=PATH; repeatable (default: all without =)"
    add("--drafter NAME", drafter, action="append")
    skips = "show instead what each policy of edge run --skip brings here and costs; with --html on the page as well"
    add("--skip POLICY,...", skips)

    add = parser.options("reports")
    add_json(add, "the profile as one JSON object")
    add("--trace FILE", "write a trace for Perfetto or chrome://tracing", Path)
    add("--html FILE", "write a page with charts, for a browser", Path)
    both = "compare two profiles that --json wrote, and measure nothing"
    add("--compare FILES", both, Path, metavar=("A.json", "B.json"), nargs=2)


def command(args: argparse.Namespace) -> None:
    """Measure what a bundle costs on this device: time to first token, time per token, the cost of a step of several
    tokens, long answers, loading, memory, CPU time and, where the system tells, energy.

    The cost curve is kept in the cache folder for later runs. docs/guide/profile.md says what each figure means.
    """
    target, reports = args.target, [path for path in (args.trace, args.html) if path is not None]
    if args.drafter and not args.speculate:
        raise InputError("--drafter says what --speculate measures; give --speculate too, or omit --drafter.")
    settings = ("seconds", "threads", "context", "provider", "strict")
    given: dict[str, Any] = {name: value for name in settings if (value := getattr(args, name)) not in (None, AUTO)}
    of_bundles = [*given, *(["skip"] if args.skip is not None else [])]
    if of_bundles and (args.compare is not None or (target is not None and target.is_file())):
        raise InputError(
            f"--{of_bundles[0]} says how a bundle is measured, and a stored profile is only shown; leave it out."
        )
    if args.compare is not None:
        also = [f"--{name}" for name in ("ops", "trace", "html", "speculate") if getattr(args, name)]
        if target is not None or also:
            also = [str(target)] if target is not None else also
            raise InputError(f"--compare takes two profiles, measures nothing, writes no report; omit {also[0]}.")
        first, second = args.compare
        _compare(first, second, args.json)
        return
    if target is None:
        raise InputError("There is nothing to measure; give a bundle, or two profiles with --compare.")
    if args.speculate:
        if args.skip is not None:
            raise InputError("--speculate and --skip are two measurements; ask for one of them.")
        if args.ops or reports or target.is_file():
            raise InputError("--speculate answers prompts with a bundle, and writes no report; omit other options.")
        from edge.cli.profile_drafts import profile_drafts

        profile_drafts(target, args.drafter or (), _options(given), args.json)
        return
    if args.skip is not None and not reports:
        if args.ops or args.context is not None:
            raise InputError("--skip answers a recorded prompt, and shows that alone; omit --ops and --context.")
        from edge.cli.profile_skipped import profile_skipped

        profile_skipped(target, args.skip, _options(given), args.json)
        return
    for path in reports:
        check_target(path)
    story: Sequence[ProfiledStep] = ()
    if target.is_file():
        found = _read(target, args.ops)
    else:
        found, story = _measure(target, _options(given), args.skip, with_ops=args.ops or bool(reports))
    _write(found, story, args.trace, args.html)
    if args.json:
        print(found.to_json(), end="")
        return
    from edge.cli.profile_tables import show

    show(found)
    if args.ops:
        from edge.cli.profile_ops import show_ops

        show_ops(found)


def _read(path: Path, with_ops: bool) -> Profile:
    """A profile that was measured before, here or elsewhere."""
    from edge.runtime.costs.record import read_profile

    found = read_profile(path)
    if with_ops and not found.ops:
        raise InputError(f"{path} holds no operators; profile the bundle with --ops.")
    return found


def _options(given: dict[str, Any]) -> ProfileOptions:
    from edge.runtime.profile.profile import ProfileOptions

    return ProfileOptions(**given)


def _measure(
    path: Path, options: ProfileOptions, skips: str | None, *, with_ops: bool
) -> tuple[Profile, Sequence[ProfiledStep]]:
    """The profile of a bundle, and with its operators a run of them to be told as a trace. skips: policies."""
    from edge.cli.answering import open_answering
    from edge.cli.profile_skipped import checked, telling
    from edge.runtime.costs.curve import store
    from edge.runtime.profile.profile import profile, settled
    from edge.runtime.profile.skipped import measure

    story: Sequence[ProfiledStep] = ()
    bundle = open_answering(path)
    options = settled(bundle, options)
    policies = None if skips is None else checked(bundle, skips, options)
    others = (OPS_SHARE + PEAKS_SHARE if with_ops else 0) + (0 if policies is None else SKIP_SHARE)
    with stages() as (progress, say):
        found = profile(path, _for(options, 1 - others), progress=progress)
        try:
            store(found)
        except OSError as e:
            say(f"The cost curve could not be kept for later runs: {e.strerror or e}.")
        if with_ops:
            from edge.runtime.profile import ops, peaks

            gc.collect()  # the engine: operators are watched in sessions of their own
            provider = open_provider(options.provider, options.threads, bundle.manifest, options.strict)
            measured = ops.measure(
                bundle,
                provider=provider,
                limit=options.context,
                seconds=options.seconds * OPS_SHARE,
                progress=lambda what: progress(0, 0, what),
            )
            best = None
            if provider.name == BEST:  # what the processor can do says nothing of another device
                progress(0, 0, "what this machine can do at best")
                best = peaks.measure(provider, seconds=options.seconds * PEAKS_SHARE)
            notes, placement = [*found.notes, *measured.notes], measured.placement
            found = dataclasses.replace(found, ops=measured.ops, peaks=best, placement=placement, notes=notes)
            story = measured.story
        if policies is not None:
            gc.collect()
            skipped = measure(bundle, policies, _for(options, SKIP_SHARE), telling(progress))
            found = dataclasses.replace(found, skipped=skipped)
    return found, story


def _for(options: ProfileOptions, share: float) -> ProfileOptions:
    """The options for a share of the time."""
    return dataclasses.replace(options, seconds=max(1.0, options.seconds * share))


def _write(profile: Profile, story: Sequence[ProfiledStep], trace: Path | None, html: Path | None) -> None:
    """Write the reports that were asked for."""
    if trace is not None:
        from edge.profile.trace import trace_json

        write_report(trace, trace_json(profile, story))
    if html is not None:
        from edge.profile.html import page

        write_report(html, page(profile))


def _compare(first: Path, second: Path, as_json: bool) -> None:
    from edge.profile.compare import compare
    from edge.runtime.costs.record import read_profile

    comparison = compare(read_profile(first), read_profile(second))
    if as_json:
        print_json(comparison.summary())
        return
    from edge.cli.profile_tables import show_comparison

    show_comparison(comparison, str(first), str(second))
