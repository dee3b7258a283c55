"""`python -m fuzz`: tries kinds of input for a while, prints a table, and ends with status 1 where something failed."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from edge.errors import InputError
from edge.registry import Entry
from fuzz.inputs import ROOT, make_inputs
from fuzz.kinds import KINDS
from fuzz.run import Order, Tally, again, run

MINUTES = {"short": 0.75, "usual": 4.5, "nightly": 240.0}  # of trying; inputs take half a minute before
KEPT = ROOT / "build" / "fuzz"  # where inputs that failed are kept


def main(arguments: list[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        entries = [KINDS.find(name) for name in given.kind or KINDS]
    except InputError as e:
        print(e, file=sys.stderr)
        return 2
    seed = random.SystemRandom().randrange(1 << 31) if given.seed is None else given.seed
    with tempfile.TemporaryDirectory(prefix="edge-fuzz-") as folder:
        whole = Path(folder)
        began = time.monotonic()
        make_inputs(whole, [name for entry in entries for name in entry.traits["inputs"]])
        print(f"Seed {seed}; inputs made in {time.monotonic() - began:.0f} s.", flush=True)
        if given.again:
            tallies = [again(entries[0], given.again.resolve(), whole)]
        else:
            tallies = _tried(given, entries, seed, whole)
    return _report(tallies)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    known = "; ".join(f"{entry.name}: {entry.help}" for entry in KINDS.values())
    parser.add_argument("--kind", action="append", help=f"a kind of input, repeatable (default: all). {known}")
    parser.add_argument("--seed", type=int, help="what all cases are drawn from (default: another one each time)")
    parser.add_argument("--case", type=int, help="this case alone")
    parser.add_argument("--cases", type=int, help="so many cases of each kind, however long they take")
    parser.add_argument("--length", choices=MINUTES, default="usual", help="how long all takes (default: %(default)s)")
    parser.add_argument(
        "--again", type=Path, metavar="FOLDER", help="the input that was kept in this folder; with --kind"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    return parser


def _tried(given: argparse.Namespace, entries: list[Entry], seed: int, whole: Path) -> list[Tally]:
    """Every kind for its share of the time, the longest first."""
    total = sum(_share(entry) for entry in entries if "cases" not in entry.traits)
    minutes = MINUTES[given.length] * given.jobs

    def one(entry: Entry) -> Tally:
        driver = entry.traits.get("driver")
        if driver and not (ROOT / driver).exists():
            return Tally(entry.name, missing=f"there is no {driver}")
        if given.case is not None:
            return run(Order(entry, seed, whole, KEPT, first=given.case, count=1))
        if "cases" in entry.traits:
            return run(Order(entry, seed, whole, KEPT, count=given.cases or entry.traits["cases"][given.length]))
        if given.cases is not None:
            return run(Order(entry, seed, whole, KEPT, count=given.cases))
        return run(Order(entry, seed, whole, KEPT, seconds=minutes * 60 * _share(entry) / total))

    with ThreadPoolExecutor(max(1, given.jobs)) as pool:
        return list(pool.map(one, sorted(entries, key=_share, reverse=True)))


def _share(entry: Entry) -> float:
    return float(entry.traits.get("share", 1))


def _report(tallies: list[Tally]) -> int:
    """Print what was found; 1 where anything failed."""
    for tally in tallies:
        for fault in tally.faults:
            print(f"FAULT {fault}\n")
    print(f"{'kind':14}{'cases':>9}{'accepted':>10}{'refused':>9}{'faults':>8}{'cases/s':>9}{'slowest s':>11}")
    for tally in sorted(tallies, key=lambda each: each.kind):
        if tally.missing or tally.broken:
            print(f"{tally.kind:14}not tried: {tally.missing or tally.broken}")
            continue
        accepted, refused, faults = tally.ends.values()
        speed = tally.cases / tally.seconds if tally.seconds else 0.0
        print(f"{tally.kind:14}{tally.cases:9,}{accepted:10,}{refused:9,}{faults:8,}{speed:9,.1f}{tally.slowest:11.2f}")
    return int(any(tally.faults or tally.broken for tally in tallies))


if __name__ == "__main__":
    sys.exit(main())
