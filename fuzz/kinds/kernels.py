"""The kernels, built with sanitizers: shapes that do not fit (AddressSanitizer, UndefinedBehaviorSanitizer), and their
team of threads (ThreadSanitizer). `kernels/fuzz/run.py` does it; a case is a run of it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

from fuzz.inputs import ROOT, variables
from fuzz.oracle import Fault

NAME = "kernels"
HELP = "the kernels under sanitizers, with shapes that do not fit"
# Counted and not timed: the first case is the team's, each other one has so many shapes. The driver bounds itself.
TRAITS = {"inputs": (), "cases": {"short": 2, "usual": 11, "nightly": 101}, "driver": "kernels/fuzz/run.py"}
SHAPES = 10_000


def make_case(choose: random.Random, whole: Path, place: Path) -> None:
    case = {"seed": choose.randrange(1 << 31), "first": place.name.endswith("-0")}
    (place / "case.json").write_text(json.dumps(case), encoding="utf-8")


def try_one(place: Path) -> None:
    case = json.loads((place / "case.json").read_text(encoding="utf-8"))
    asked = ["--cases", str(SHAPES), "--seed", str(case["seed"])]
    command = [sys.executable, str(ROOT / str(TRAITS["driver"])), *asked]
    if case["first"]:
        command += ["--sanitizer", "thread"]
    done = subprocess.run(command, env=variables(), capture_output=True, text=True, cwd=place)
    if done.returncode:
        raise Fault(f"{' '.join(command[1:])} ended with {done.returncode}: {(done.stdout + done.stderr)[-2500:]}")
