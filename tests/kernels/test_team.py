"""The team of threads on a busy machine: who leads does not wait again and again for a thread that was put aside."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from places import ROOT

# onnxruntime's pool is played by one other thread, which is put aside in the middle of each piece that it takes.
PROGRAM = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include "team.h"

using namespace edge;
using Clock = std::chrono::steady_clock;

int aside_us = 0;  // that the other thread is put aside in a piece
int asked = 0;     // times that the others were asked to come

ort::Status* ParallelFor(const ort::Context*, void (*work)(void*, size_t), size_t total, size_t, void* with) {
  asked++;
  if (aside_us) {
    std::thread other([&] { work(with, 1); });
    work(with, 0);
    other.join();
  }
  for (size_t i = aside_us ? 2 : 0; i < total; i++) work(with, i);
  return nullptr;
}

double Ms(Clock::time_point from) { return std::chrono::duration<double, std::milli>(Clock::now() - from).count(); }

void Spin(int us) {
  for (const auto from = Clock::now(); Ms(from) * 1000 < us;) {
  }
}

int main(int, char** arguments) {
  const bool chain = !std::strcmp(arguments[1], "chain");
  aside_us = std::atoi(arguments[2]);
  const int steps = std::atoi(arguments[3]);
  const void* table[300] = {};
  table[274] = reinterpret_cast<const void*>(&ParallelFor);
  const ort::Api api(table);
  const auto leader = std::this_thread::get_id();
  std::atomic<long> done{0};
  auto piece = [&](size_t) {
    Spin(20);
    if (std::this_thread::get_id() != leader && aside_us)
      std::this_thread::sleep_for(std::chrono::microseconds(aside_us));
    done++;
  };
  const auto from = Clock::now();
  for (int step = 0; step < steps; step++) {
    Team team(api, nullptr);
    if (chain)
      team.Lead([&](Team& all) {
        for (int work = 0; work < 4; work++) all.Share(10, piece);
      });
    else
      for (int work = 0; work < 4; work++) team.Share(10, piece);
  }
  std::printf("%d %ld %f\n", asked, done.load(), Ms(from));
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    folder = tmp_path_factory.mktemp("team")
    (folder / "team.cpp").write_text(PROGRAM, encoding="utf-8")
    command = [compiler, "-std=c++17", "-O1", "-pthread", f"-I{ROOT / 'kernels' / 'src'}", str(folder / "team.cpp")]
    subprocess.run([*command, "-o", str(folder / "team")], check=True)
    return folder / "team"


def run(program: Path, how: str, aside_us: int, steps: int) -> tuple[int, int, float]:
    """How often the others were asked, the pieces that were done, and milliseconds."""
    asked, done, ms = subprocess.check_output([program, how, str(aside_us), str(steps)], text=True).split()
    return int(asked), int(done), float(ms)


@pytest.mark.parametrize("how", ["chain", "alone"])
@pytest.mark.parametrize("aside_us", [1000, 4000])
def test_a_thread_that_is_put_aside_is_seldom_asked_again(program: Path, how: str, aside_us: int) -> None:
    steps = 500
    asked, done, _ = run(program, how, aside_us, steps)
    assert done == steps * 40, "every piece is done once"
    assert asked < steps // 4


@pytest.mark.parametrize("how", ["chain", "alone"])
def test_who_never_waits_asks_every_time(program: Path, how: str) -> None:
    """In one of several runs, for this machine may be busy itself."""
    steps = 50
    tries = (run(program, how, 0, steps) for _ in range(10))
    assert any(asked == steps * (1 if how == "chain" else 4) and done == steps * 40 for asked, done, _ in tries)
