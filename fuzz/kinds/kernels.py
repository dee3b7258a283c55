"""The kernels, built with sanitizers: shapes that do not fit (AddressSanitizer, UndefinedBehaviorSanitizer), and their
team of threads (ThreadSanitizer). `kernels/fuzz/run.py` does it; a case is a run of it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

from edge.errors import MissingExtraError, on_one_line
from fuzz.inputs import ROOT, variables
from fuzz.oracle import Fault

NAME = "kernels"
HELP = "the kernels under sanitizers, with shapes that do not fit"
# Counted and not timed, for building takes a minute or two: the second case is the team's, each other one has 10,000
# shapes. The driver bounds itself; what it built stays.
TRAITS = {"inputs": (), "cases": {"short": 1, "usual": 11, "nightly": 101}, "driver": "kernels/fuzz/run.py"}
SHAPES, SHAPES_OF_THREADS = 10_000, 3_000
CANNOT_BE_BUILT = 2  # its exit status
REQUIRED = "EDGE_TEST_KERNELS_REQUIRED"  # set where they can be


def make_case(choose: random.Random, whole: Path, place: Path) -> None:
    case = {"seed": choose.randrange(1 << 31), "threads": place.name.endswith("-1")}
    (place / "case.json").write_text(json.dumps(case), encoding="utf-8")


def try_one(place: Path) -> None:
    case = json.loads((place / "case.json").read_text(encoding="utf-8"))
    shapes = SHAPES_OF_THREADS if case["threads"] else SHAPES
    command = [sys.executable, str(ROOT / str(TRAITS["driver"])), "--cases", str(shapes), "--seed", str(case["seed"])]
    if case["threads"]:
        command += ["--sanitizer", "thread"]
    done = subprocess.run(command, env=variables(), capture_output=True, text=True, cwd=place)
    said = (done.stdout + done.stderr)[-2500:]
    if done.returncode == CANNOT_BE_BUILT and not os.environ.get(REQUIRED):
        raise MissingExtraError(f"The kernels cannot be built with sanitizers here: {on_one_line(Fault(said))}.")
    if done.returncode:
        raise Fault(f"{' '.join(command[1:])} ended with {done.returncode}: {said}")
