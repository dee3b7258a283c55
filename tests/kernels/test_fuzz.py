"""Operators at random, and with one fault: what fits runs, with the same bits whatever computes it, and what does not
is refused. `make fuzz` runs many more, under sanitizers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

from edge.runtime.kernels.library import Kernels

SCRIPT = ROOT / "kernels" / "fuzz" / "run.py"
SEED = "51"


def fuzz(*arguments: str) -> str:
    done = subprocess.run([sys.executable, str(SCRIPT), "--seed", SEED, *arguments], capture_output=True, text=True)
    if done.returncode == 2:
        pytest.skip(done.stderr.splitlines()[0])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_fits_runs_and_what_does_not_is_refused(kernels: Kernels, tmp_path: Path) -> None:
    said = fuzz("--cases", "3000", "--library", str(kernels.path), "--build", str(tmp_path))
    assert "3000 cases" in said and "nothing was found" in said


@pytest.mark.slow
@pytest.mark.parametrize(("sanitizer", "cases"), [("address", 3000), ("thread", 300)])
def test_sanitizers_find_nothing(sanitizer: str, cases: int) -> None:
    assert "nothing was found" in fuzz("--cases", str(cases), "--sanitizer", sanitizer)
