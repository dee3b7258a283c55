"""Measuring: medians with their confidence, rounds in an order of their own, and a time limit that is kept."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from edge.runtime.profile.measure import Group, Series, confidence, summarize, take_turns


class FakeClock:
    """Seconds that pass only when a job says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeJob:
    """Takes as long as it is told, every time."""

    clock: FakeClock
    seconds: float
    enough: int = 10**9
    log: list[FakeJob] = field(default_factory=list, repr=False)
    runs: list[bool] = field(default_factory=list)

    @property
    def sure(self) -> bool:
        return sum(self.runs) >= self.enough

    def run(self, *, keep: bool) -> None:
        self.clock.now += self.seconds
        self.runs.append(keep)
        self.log.append(self)


def test_statistics_of_a_hundred_times() -> None:
    stats = summarize([float(n) for n in range(1, 101)])
    assert (stats.count, stats.p50_ms, stats.min_ms, stats.jitter_ms) == (100, 50.5, 1.0, 1.0)
    assert (stats.low_ms, stats.high_ms) == (40, 61)  # the ranks of the tables
    assert stats.p90_ms == pytest.approx(90.1) and stats.p99_ms == pytest.approx(99.01)


def test_one_time_is_its_own_median() -> None:
    stats = summarize([3.0])
    assert (stats.p50_ms, stats.low_ms, stats.high_ms, stats.jitter_ms) == (3, 3, 3, 0)


@pytest.mark.parametrize("n", [8, 30, 200])
def test_the_interval_holds_the_median_19_times_of_20(n: int) -> None:
    draws = np.sort(np.random.default_rng(1).lognormal(sigma=0.5, size=(2000, n)), axis=1)  # its median is 1
    hits = sum(low <= 1 <= high for low, high in map(confidence, draws))
    assert 0.93 < hits / 2000 < 0.996  # eight values have no closer interval than all of them


def test_a_series_is_sure_when_its_median_is_known_closely() -> None:
    rng = random.Random(2)
    steady, noisy = Series(target=0.01), Series(target=0.01)
    for _ in range(50):
        steady.times.append(rng.gauss(10, 0.1))
        noisy.times.append(rng.gauss(10, 2))
    assert steady.sure and not noisy.sure
    assert not Series(least=7, times=[1.0] * 6).sure


def test_the_first_run_of_a_job_only_warms_up() -> None:
    job = FakeJob(FakeClock(), 1, enough=3)
    assert take_turns([Group([job])], 100, clock=job.clock)
    assert job.runs == [False, True, True, True]


def test_jobs_that_are_sure_leave_their_time_to_the_others() -> None:
    clock = FakeClock()
    easy, hard = FakeJob(clock, 1, enough=2), FakeJob(clock, 1)
    take_turns([Group([easy]), Group([hard])], 20, clock=clock)
    assert len(easy.runs) == 3 and len(hard.runs) == 17


def test_every_round_has_an_order_of_its_own() -> None:
    clock, log = FakeClock(), list[FakeJob]()
    jobs = [FakeJob(clock, 1, 30, log) for _ in range(4)]
    take_turns([Group(jobs)], 10**6, clock=clock)
    rounds = [tuple(map(id, log[i : i + 4])) for i in range(4, len(log), 4)]
    assert all(len(set(each)) == 4 for each in rounds) and len(set(rounds)) > 10


def test_a_group_is_entered_before_its_jobs_run() -> None:
    clock, entered = FakeClock(), list[str]()
    groups = [Group([FakeJob(clock, 1, enough=1)], lambda name=name: entered.append(name)) for name in "ab"]
    take_turns(groups, 100, clock=clock)
    assert sorted(entered) == ["a", "a", "b", "b"]


def test_nothing_is_begun_that_would_end_too_late() -> None:
    clock = FakeClock()
    short, long = FakeJob(clock, 1), FakeJob(clock, 30)
    take_turns([Group([short, long])], 100, clock=clock)
    assert clock.now <= 100 and len(long.runs) >= 2 and len(short.runs) > 5


def test_without_time_each_job_is_still_measured_once() -> None:
    clock = FakeClock()
    jobs = [FakeJob(clock, 10) for _ in range(4)]
    assert not take_turns([Group(jobs)], 15, clock=clock)
    assert [job.runs for job in jobs] == [[False, True], [True], [True], [True]]
