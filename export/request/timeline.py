"""Remaining time of an export: an estimate for each stage, corrected by the measured time of the stages before."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import accumulate

from edge.export.facts.progress import Progress

RECENT = 0.15  # of the whole work, after which what was learnt before counts half
PRIOR_S = 5.0  # at least, for which the estimate is believed before anything was measured
RESUMED = 8.0  # times as fast as expected: this was kept from an interrupted export, and says nothing of the speed

Stages = Sequence[tuple[str, float]]  # texts of the stages in their order, each with its seconds, as expected


class Timeline:
    """A `Progress` that adds the remaining time to the text that it passes on, once it has begun. Stages without a name
    in `begin` count as 0 seconds."""

    def __init__(self, report: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self._report, self._clock = report, clock
        self._names: list[str] = []
        self._ends = [0.0]  # the work that is done before each stage, and in the end: seconds, as expected
        self._at = 0  # the stage

    def begin(self, stages: Stages) -> None:
        """Start the countdown."""
        self._names = [name for name, _ in stages]
        self._ends = [0.0, *accumulate(seconds for _, seconds in stages)]
        self._since, self._done = self._clock(), 0.0  # when work was done last, and all that was
        self._half = max(PRIOR_S, RECENT * self._ends[-1])
        self._took = self._expected = self._half  # seconds, of what was done lately
        self(0, 0, self._names[0])

    def __call__(self, done: int, total: int, text: str) -> None:
        if text in self._names[self._at :]:
            at = self._names.index(text, self._at)
            share = self._ends[at + 1] - self._ends[at]
            self._go_on(at, self._ends[at] + share * (min(done / total, 1) if total else 0))
        self._report(done, total, f"{text} · {in_words(self.left())} left" if self._names else text)

    def left(self) -> float:
        """Return the remaining seconds, 0 or more. The number falls as time passes; while a stage takes longer than
        expected it stays at the time of the stages after it."""
        pace = self._took / self._expected
        after = self._ends[-1] - self._ends[self._at + 1]
        return max(pace * after, pace * (self._ends[-1] - self._done) - (self._clock() - self._since), 0.0)

    def _go_on(self, at: int, work: float) -> None:
        """Record that work is done up to `work`, in the stage `at`."""
        now, before = self._clock(), self._at
        left_out = self._ends[at] - self._ends[before + 1] if at > before else 0  # stages in between took no time
        took, did = now - self._since, work - left_out - self._done
        self._at = at
        if work <= self._done:
            return
        if 0 < did <= RESUMED * took:
            faded = 0.5 ** (did / self._half)
            self._took = self._took * faded + took
            self._expected = self._expected * faded + did
        self._since, self._done = now, work


def in_words(seconds: float) -> str:
    """Return an approximate time in words: a few seconds, about 40 s, about 6 min, about 2 h 20 min."""
    if seconds < 8:
        return "a few seconds"
    if seconds < 90:
        return f"about {max(10, round(seconds, -1)):.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"about {minutes} min"
    hours, rest = divmod(round(minutes, -1), 60)
    return f"about {hours} h {rest} min" if rest else f"about {hours} h"
