"""`edge verify`: is this bundle whole, and does this host compute what the exporter computed?"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge.bundle import Bundle, open_bundle
from edge.errors import BundleError
from edge.manifest import KV8

if TYPE_CHECKING:
    from edge.runtime.verify import GoldenReport

NAMES = {
    "wide": ", int8, for long prompts",
    KV8: ", over a KV cache in int8",
    "tree": ", for drafts that branch",
    "segments": ", for skipped layers",
}


def command(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The bundle, a folder NAME.edge.")],
    threads: Annotated[int | None, typer.Option(help="Threads to compute with; default: one per core.")] = None,
) -> None:
    """Check a bundle's files against their sha256s and replay its recorded answers on this machine, in each graph that
    edge run could take.

    Exit status 0 says that every file is as it was exported and that the model answers as it did then, up to
    near-ties: another token in a place where two were equally good within the tolerance that golden.json states.
    """
    opened = open_bundle(bundle)
    _check_files(opened)
    _replay(opened, threads)


def _check_files(bundle: Bundle) -> None:
    from edge.cli.progress import bar

    files = bundle.manifest.files
    size = sum(file.size for file in files)
    with bar("Hashing files", size, unit="bytes") as advance:
        bundle.check_files(advance)
    print(f"Files    {len(files)} intact, {size / 1e6:.1f} MB")


def _replay(bundle: Bundle, threads: int | None) -> None:
    from edge.cli.progress import bar
    from edge.runtime.memory import release_freed
    from edge.runtime.verify import open_role, read_golden, replay_golden, roles

    golden, graphs = read_golden(bundle), roles(bundle.manifest)
    faults: list[str] = []
    with bar("Replaying recorded answers", len(graphs) * sum(len(case.greedy_ids) for case in golden.cases)) as advance:
        reports = {}
        for role in graphs:
            reports[role] = replay_golden(open_role(bundle, role, threads=threads), golden, advance, role=role)
            release_freed()  # so that the next one does not stand next to what this one held
    for role, report in reports.items():
        print(f"Graph    {role}{NAMES.get(role, '')}")
        _tell(report)
        faults += [f"its graph {role}, {fault}" for fault in report.faults]
    if faults:
        more = f", and {len(faults) - 1} more differences" if len(faults) > 1 else ""
        raise BundleError(
            f"{bundle.root} does not answer on this machine as it was recorded ({faults[0]}{more}); the files "
            f"are intact, so the fault is in the model's computation here: report it with this machine's processor."
        )


def _tell(report: GoldenReport) -> None:
    """What a replay found, in lines."""
    ties = len(report.near_ties)
    print(f"Answers  {report.prompts} prompts, {report.tokens} tokens: {report.tokens - ties} as ", end="")
    if math.isinf(report.tolerance):
        print("the decoder's; the bundle was exported before answers of this graph were recorded")
        return
    print("recorded" + (f", {ties} near-tie{'s' if ties > 1 else ''}" if ties else ""))
    for tie in report.near_ties:
        print(f"         near-tie at {tie}")
    apart = report.largest_difference
    print(f"Logits   distances within {apart:.2g} of the recorded; {report.tolerance:.2g} is tolerated")
