"""From a GGUF file and an empty cache to the first token, on this runtime and on its peers, side by side in one run.

    python benchmarks/first_answer.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf

Every engine does twice what its user would do: with nothing made of the file yet, and then with what the first run
left. docs/lab/benchmarks.md says more.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import convert
import machine
from comparison import Comparison, Entrant, add_common, add_peer_python, names_of, parsed, say, write
from engines import DECODER, DECODERS, engine_file
from processes import REST_S, WorkerFailed, first_byte
from prompts import QUESTION

ROWS = [  # CPU time is that of the whole run, which depends less on what else the machine does
    (f"{what}{which} run", unit, False, digits)
    for what, unit, digits in (("", "s", 2), ("CPU time, ", "s", 2), ("peak private, ", "MiB", 0))
    for which in ("first", "second")
]


def main() -> int:
    """Measure, print, write. Returns the exit status."""
    args = parse(sys.argv[1:])
    if not args.gguf.is_file():
        print(f"first_answer: there is no {args.gguf}", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    say(f"{args.threads} threads, load average {os.getloadavg()[0]:.2f} before the start")
    with (args.out / "first_answer.log").open("w") as log:
        compared = Comparison(DECODER, args.threads, log, args.pythons)
        for name in args.engines:
            enter(compared, name, args.gguf)
        order = random.Random(0)
        for number in range(args.rounds):  # each in another order, so that a drift of the machine meets all alike
            entrants = list(compared.entrants.values())
            for found in order.sample(entrants, len(entrants)):
                try:
                    twice(compared, found, args.work)
                except WorkerFailed as error:
                    compared.skip(found.name, str(error))
            say(f"round {number + 1} of {args.rounds}")
    compared.show(compared.metrics(ROWS), [])
    write(args.out / "first_answer.json", args.threads, {"gguf": args.gguf.name} | compared.result())
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line. The folder of --work is for caches, which are removed again."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--gguf", type=Path, required=True, help="the model's file, which all engines are given")
    engines, known = partial(names_of, DECODERS), ",".join(DECODERS)
    parser.add_argument("--engines", type=engines, default=list(DECODERS), metavar="NAME,...", help=f"default: {known}")
    parser.add_argument("--rounds", type=int, default=5)
    add_peer_python(parser)
    add_common(parser)
    args = parsed(parser, arguments)
    args.gguf = args.gguf.absolute()
    return args


def enter(compared: Comparison, name: str, gguf: Path) -> None:
    """Find an engine and import its package once, unmeasured; or say why it is skipped."""
    engine = engine_file(name)
    making = getattr(engine, "FROM_GGUF_NEEDS", ())
    if making and convert.python_with(compared.pythons, *engine.MODULES, *making) is None:
        compared.skip(name, f"making its model of a GGUF file needs {', '.join(making)} in its environment")
        return
    compared.enter(name, lambda _: gguf)
    if name in compared.entrants:
        command = [compared.entrants[name].python, "-c", engine.IMPORT]
        subprocess.run(command, stdout=compared.log, stderr=compared.log)


def twice(compared: Comparison, found: Entrant, work: Path) -> None:
    """Two runs, of which the second finds what the first one left."""
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work) as cache:
        command = found.engine.from_gguf(found.python, found.model, Path(cache), QUESTION, compared.threads)
        for which in ("first run", "second run"):
            time.sleep(REST_S)
            cpu_s = machine.children_s()
            with compared.watch.over_children():
                got = first_byte(command, compared.log, env=os.environ | {"EDGE_HOME": cache}, watched=True)
            for label, value in (
                (which, got.seconds),
                (f"CPU time, {which}", machine.children_s() - cpu_s),
                (f"peak private, {which}", got.peak_private_mb),
            ):
                compared.figures[label][found.name].append(value)
            said = f"{got.seconds:6.2f} s, {got.peak_private_mb:5.0f} MiB private"
            say(f"  {found.name}, {which}: {said}, {got.text.strip()!r}")


if __name__ == "__main__":
    sys.exit(main())
