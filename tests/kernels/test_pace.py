"""Whether threads work together follows what that brings: on a busy machine who leads works alone."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from places import ROOT

# Runs of a chain on a clock that is made up. One line for each phase: how many milliseconds runs take together and
# alone, by how much of that they vary, the part of the time that a thread works where it works together, and for how
# many seconds. Printed: of the last half of each phase, the part of the runs that were alone; of all of it, the time by
# that of as many runs the better way.
PROGRAM = r"""
#include <cstdio>
#include <random>
#include "pace.h"

using edge::Pace;

int main() {
  Pace pace;
  std::mt19937 random(1);
  double together, alone, varies, works, seconds, now = 1e9;
  int few = 1;  // rows of a draft, or of several answers: others in each phase
  while (std::scanf("%lf %lf %lf %lf %lf", &together, &alone, &varies, &works, &seconds) == 5) {
    few++;
    const double from = now, until = from + seconds * 1e9, half = (from + until) / 2;
    double best = 0;
    long late = 0, late_alone = 0;
    for (long run = 0; now < until; run++) {
      const int rows = run % 5 == 0 ? few : run % 101 == 0 ? 200 : run % 5 == 1 ? few : 1;  // drafts, and some prompts
      const Pace::Steps steps{rows, 0};
      const bool apart = pace.alone(steps);
      const double vary = 1 + varies * (random() / double(random.max()) - 0.5);
      const double size = rows == 1 ? 1 : rows < 200 ? 1.2 : 9;
      const double took = (apart ? alone : together) * vary * size * 1e6;
      best += (rows == 200 ? together : std::min(alone, together)) * vary * size * 1e6;
      const auto at = static_cast<int64_t>(now);
      pace.Note(steps, apart, {at, 0}, {at + static_cast<int64_t>(took), static_cast<int64_t>(took * works)});
      now += took + 0.1e6;
      if (rows == 200 && apart) return 1;
      if (now > half && rows < 200) late++, late_alone += apart;
    }
    std::printf("%f %f\n", late_alone / double(late), (now - from) / best);
  }
}
"""
QUIET, BUSY = (5, 8, 0.3, 1, 20), (12, 9, 1.2, 0.6, 20)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    folder = tmp_path_factory.mktemp("pace")
    (folder / "pace.cpp").write_text(PROGRAM, encoding="utf-8")
    command = [compiler, "-std=c++17", "-O1", "-pthread", f"-I{ROOT / 'kernels' / 'src'}", str(folder / "pace.cpp")]
    subprocess.run([*command, "-o", str(folder / "pace")], check=True)
    return folder / "pace"


def phases(program: Path, *given: tuple[float, ...]) -> list[tuple[float, float]]:
    lines = "\n".join(" ".join(map(str, each)) for each in given)
    said = subprocess.run([program], input=lines, capture_output=True, text=True, check=True).stdout
    return [(float(alone), float(cost)) for alone, cost in map(str.split, said.splitlines())]


@pytest.mark.parametrize("ms", [0.1, 5, 100])
@pytest.mark.parametrize("varies", [0, 0.3])
def test_on_a_quiet_machine_nobody_ever_works_alone(program: Path, ms: float, varies: float) -> None:
    ((alone, _),) = phases(program, (ms, 1.6 * ms, varies, 1, 20))
    assert alone == 0


@pytest.mark.parametrize("ms", [0.1, 5, 100])
@pytest.mark.parametrize("slower", [1.15, 2])
def test_on_a_busy_one_who_leads_works_alone_nearly_always(program: Path, ms: float, slower: float) -> None:
    ((alone, cost),) = phases(program, (slower * ms, ms, 0.5, 0.6, 60))  # prompts are read together all the same
    assert alone > 0.9 and cost < 1.06 + 0.1 / ms


@pytest.mark.parametrize("ms", [5, 100])
def test_where_together_is_quicker_on_a_busy_one_too_they_work_together(program: Path, ms: float) -> None:
    ((alone, cost),) = phases(program, (ms, 1.3 * ms, 0.5, 0.7, 60))
    assert alone < 0.1 and cost < 1.06


def test_it_follows_a_machine_that_becomes_busy_and_quiet_again(program: Path) -> None:
    (first, _), (second, _), (third, cost), (fourth, _) = phases(program, QUIET, BUSY, (5, 8, 0.3, 1, 80), BUSY)
    assert first == 0 and second > 0.85 and third == 0 and cost < 1.3 and fourth > 0.85
