"""Repeated measurements: series of times, their statistics, and many series taken in turns."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from edge.runtime.costs.record import Stats

Clock = Callable[[], float]  # seconds

TARGET = 0.01  # fraction to which the median of a series must be known, with 95% confidence
LEAST = 7  # minimum of a series, where the time allows
Z95 = 1.96


def summarize(times: Sequence[float]) -> Stats:
    """Statistics of times [n] in milliseconds, n >= 1, in the order in which they were measured.

    The confidence interval of the median is that of order statistics (the binomial distribution's normal
    approximation), which assumes nothing about how the times scatter: Conover, Practical Nonparametric Statistics, 3.2.
    """
    ordered = np.sort(np.asarray(times, np.float64))
    jitter = np.abs(np.diff(times)).mean() if len(times) > 1 else 0.0
    figures = *np.percentile(ordered, (50, 90, 99)), ordered[0], jitter, *confidence(ordered.tolist())
    return Stats(len(ordered), *(round(float(figure), 6) for figure in figures))  # to the nanosecond


def confidence(ordered: Sequence[float]) -> tuple[float, float]:
    """The 95% confidence interval of the median of sorted values [n]: all of them where n is below six."""
    n = len(ordered)
    spread = Z95 * math.sqrt(n)
    low = max(1, math.floor((n - spread) / 2))
    high = min(n, math.ceil(1 + (n + spread) / 2))
    return ordered[low - 1], ordered[high - 1]


@dataclass
class Series:
    """The times of one thing, in milliseconds, as they are measured."""

    least: int = LEAST
    target: float = TARGET
    times: list[float] = field(default_factory=list)

    @property
    def sure(self) -> bool:
        """True if the confidence interval of the median is narrow enough."""
        if len(self.times) < self.least:
            return False
        ordered = sorted(self.times)
        low, high = confidence(ordered)
        return high - low <= 2 * self.target * ordered[len(ordered) // 2]

    @property
    def stats(self) -> Stats:
        return summarize(self.times)


class Job(Protocol):
    """Something that is measured repeatedly."""

    @property
    def sure(self) -> bool: ...

    def run(self, *, keep: bool) -> None:
        """Measure once. keep: whether the time counts; else it is a warm-up."""


@dataclass
class Group:
    """Jobs that share a state of the machine, such as its caches; `enter` makes that state."""

    jobs: Sequence[Job]
    enter: Callable[[], object] = lambda: None


def take_turns(
    groups: Sequence[Group],
    until: float,
    *,
    between: Callable[[], None] = lambda: None,
    warm: bool = False,
    rng: random.Random | None = None,
    clock: Clock = time.monotonic,
) -> bool:
    """Run every job once to warm up, then all that are not sure yet in rounds, until the clock shows `until`.

    Each round has a random order, so that drift affects all jobs alike. A job that would end too late, by the time of
    its last run, is not begun, but each is measured once in any case.

    Args:
        between: called after every round.
        warm: all have run before.

    Returns:
        Whether there was time to warm all of them up; the others were measured once, in their order.
    """
    rng = rng or random.Random(0)
    took: dict[int, float] = {}  # by id of a job
    measured: set[int] = set()

    def timed(job: Job, keep: bool) -> None:
        start = clock()
        job.run(keep=keep)
        took[id(job)] = clock() - start
        if keep:
            measured.add(id(job))

    def due(job: Job) -> bool:
        return id(job) not in measured or (not job.sure and clock() + took[id(job)] <= until)

    began, late = clock(), False
    for group in () if warm else groups:
        group.enter()
        for job in group.jobs:
            late = late or clock() - began > (until - began) / 2
            timed(job, keep=late)
    while True:
        ran = False
        for group in rng.sample(groups, len(groups)):
            jobs = [job for job in group.jobs if due(job)]
            if jobs:
                group.enter()
            for job in rng.sample(jobs, len(jobs)):
                if due(job):
                    timed(job, keep=True)
                    ran = True
        if not ran:
            return not late
        between()
