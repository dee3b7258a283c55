"""`edge verify`: is this bundle whole, and does this host compute what the exporter computed?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edge.bundle import Bundle, open_bundle
from edge.errors import BundleError


def command(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The bundle, a folder NAME.edge.")],
    threads: Annotated[int | None, typer.Option(help="Threads to compute with; default: one per core.")] = None,
) -> None:
    """Check a bundle's files against their sha256s and replay its recorded answers on this machine.

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
    from edge.runtime.engine import Engine
    from edge.runtime.verify import read_golden, replay_golden

    golden = read_golden(bundle)
    engine = Engine(bundle, threads=threads)
    with bar("Replaying recorded answers", sum(len(case.greedy_ids) for case in golden.cases)) as advance:
        report = replay_golden(engine, golden, advance)
    if not report.ok:
        more = f", and {len(report.faults) - 1} more differences" if len(report.faults) > 1 else ""
        raise BundleError(
            f"{bundle.root} does not answer on this machine as it was recorded ({report.faults[0]}{more}); the files "
            f"are intact, so the fault is in the model's computation here: report it with this machine's processor."
        )
    ties = len(report.near_ties)
    print(f"Answers  {report.prompts} prompts, {report.tokens} tokens: {report.tokens - ties} as recorded", end="")
    print(f", {ties} near-tie{'s' if ties > 1 else ''}" if ties else "")
    for tie in report.near_ties:
        print(f"         near-tie at {tie}")
    apart = report.largest_difference
    print(f"Logits   distances within {apart:.2g} of the recorded; {report.tolerance:.2g} is tolerated")
