"""`edge verify`: is this bundle whole, and does this host compute what the exporter computed?"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from edge.bundle import Bundle, open_bundle
from edge.cli.arguments import Parser, add_bundle, add_field
from edge.cli.tables import console
from edge.errors import BundleError, InputError
from edge.manifest import KV8
from edge.targets import TARGETS

if TYPE_CHECKING:
    from edge.runtime.check.golden import GoldenReport
    from edge.runtime.providers.provider import Provider

NAME = "verify"
SHOWN = 5  # files that are not the bundle's
HELP = "Check a bundle's files and replay its recorded answers."
ROLES = {
    "prefill": ", int8, for long prompts",
    KV8: ", over a KV cache in int8",
    "skip": ", for skipped layers",
    **{target: f", for the provider {provider}" for target, provider in TARGETS.items()},
}


def add_arguments(parser: Parser) -> None:
    from edge.runtime.load_options import LoadOptions
    from edge.runtime.providers import AUTO

    add_bundle(parser)
    add = parser.options()
    add_field(add, LoadOptions, "threads")
    add_field(add, LoadOptions, "provider", default=AUTO)
    add_field(add, LoadOptions, "strict")
    what = "also write what edge answers to some prompts, chats or sounds, for another host of the bundle to repeat"
    add("--emit FOLDER", what, Path)


def command(args: argparse.Namespace) -> None:
    """Check a bundle's files against their sha256s and replay its recorded answers on this machine, in each graph that
    edge run could take.

    Exit status 0 says that every file is as it was exported and that the model answers as it did then, up to
    near-ties: another token in a place where two were equally good within the tolerance that golden.json states.
    """
    from edge.runtime.costs.measured import open_for
    from edge.runtime.kernels.packed import forget_packed

    opened = open_bundle(args.bundle)
    files = _check_files(opened)
    forget_packed(opened)  # so that what answers is made of these files
    provider = open_for(opened, args.provider, args.threads, args.strict)
    if opened.manifest.embedding is not None:
        from edge.cli.verify_vectors import verify_vectors

        if args.emit is not None:
            raise InputError(f"{opened.manifest.name} answers nothing; --emit is for models that answer.")
        verify_vectors(opened, files, provider)
        return
    _tell(opened, files, _replay(opened, provider))
    if args.emit is not None:
        _emit(opened, args.emit, provider)


def _check_files(bundle: Bundle) -> list[str]:
    """Check a bundle's files; return lines about them. BundleError if one is damaged."""
    from edge.cli.progress import bar

    files = bundle.manifest.files
    size = sum(file.size for file in files)
    with bar("Hashing files", size, unit="bytes") as advance:
        bundle.check_files(advance)
    lines = [f"Files    {len(files)} intact, {size / 1e6:.1f} MB"]
    if others := bundle.unlisted:
        more = f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
        shown = ", ".join(repr(name[:100]) for name in others[:SHOWN])
        lines.append(f"         not in the manifest, so nothing reads or checks it: {shown}{more}")
    return lines


def _replay(bundle: Bundle, provider: Provider) -> dict[str, GoldenReport]:
    """Replay the recorded answers on each graph; return the reports by the graph's role."""
    from edge.cli.progress import bar
    from edge.golden import read_golden
    from edge.runtime.check.golden import open_role, replay_golden, roles
    from edge.runtime.memory.process import release_freed

    golden, graphs = read_golden(bundle), roles(bundle, provider.name)
    if graphs[0] in TARGETS and not any(form.role == graphs[0] for form in golden.forms):
        raise BundleError(
            f"{bundle.root} has no recorded answers for {graphs[0]}, whose graphs have no room for them; verify it "
            "with the provider cpu."
        )
    with bar("Replaying recorded answers", len(graphs) * sum(len(case.greedy_ids) for case in golden.cases)) as advance:
        reports = {}
        for role in graphs:
            engine = open_role(bundle, role, provider=provider)
            reports[role] = replay_golden(engine, golden, advance, role=role)
            del engine
            release_freed()  # else what this one held stays next to the next one: 11 MiB of SmolLM2-135M
    return reports


def _tell(bundle: Bundle, files: list[str], reports: dict[str, GoldenReport]) -> None:
    """Print what was found, the verdict first; BundleError where that is a fault."""
    faults = [f"its graph {role}, {fault}" for role, report in reports.items() for fault in report.faults]
    console(wrap=True).print(f"Verdict  {_verdict(bool(faults), list(reports.values()))}")
    print(*files, sep="\n")
    for role, report in reports.items():
        print(f"Graph    {role}{ROLES.get(role, '')}")
        _tell_of(report)
    if faults:
        more = f", and {len(faults) - 1} more differences" if len(faults) > 1 else ""
        raise BundleError(
            f"{bundle.root} does not answer on this machine as it was recorded ({faults[0]}{more}); the files "
            f"are intact, so the fault is in the model's computation here: report it with this machine's processor."
        )


def _verdict(faults: bool, reports: list[GoldenReport]) -> str:
    if faults:
        return "Not good: the files are intact, but the answers are others than were recorded at export."
    good = "Good: the files are intact, and the answers are as recorded at export"
    ties, tokens = sum(len(report.near_ties) for report in reports), sum(report.tokens for report in reports)
    if not ties:
        return f"{good}."
    return f"{good}; at {ties} of {tokens} tokens two were equally good (near-ties), which is no fault."


def _emit(bundle: Bundle, folder: Path, provider: Provider) -> None:
    from edge.cli.progress import bar
    from edge.runtime.check.conformance import count, emit

    with bar("Answering", count(bundle)) as advance:
        answers = emit(bundle, folder, provider=provider, progress=advance)
    print(f"Corpus   {answers} answers in {folder}")


def _tell_of(report: GoldenReport) -> None:
    """Print what a replay found."""
    ties, different = len(report.near_ties), report.different
    same = report.tokens - ties - different
    told = f", {ties} near-tie{'s' if ties > 1 else ''}" if ties else ""
    told += f", {different} different" if different else ""
    count = f"{same} of {report.tokens}" if different else f"{report.tokens} tokens: {same}"
    print(f"Answers  {report.prompts} prompts, {count} as recorded{told}")
    for tie in report.near_ties:
        print(f"         near-tie at {tie}")
    apart, tolerated = report.largest_difference, f"up to {report.tolerance:.2g} nats are tolerated"
    if apart <= report.tolerance:
        print(f"Logits   distances within {apart:.2g} nats of the recorded; {tolerated}")
    elif math.isnan(apart):
        print(f"Logits   not numbers; {tolerated}")
    else:
        print(f"Logits   distances up to {apart:.3g} nats from the recorded; {tolerated}")
