"""Steadiness of the machine: one step measured again and again, and long answers in a row."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from edge.runtime.costs.machine import Energy
from edge.runtime.costs.record import Noise, Rate, Sustained, Usage
from edge.runtime.profile.measure import Clock
from edge.runtime.profile.subject import Subject

STEPS = 5  # of one measurement of drift
PAUSE_S = 0.25  # minimum between two measurements of drift
RATE_S = 1.0  # over which tokens are counted
ANSWER_TOKENS = 256  # maximum
LEAST_RATES = 3
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)  # 97.5% quantiles for 1 to 10 degrees


class DriftMeter:
    """Measures one and the same step between all others: whatever changes its time is the machine's."""

    def __init__(self, step: Callable[[], float], clock: Clock = time.monotonic) -> None:
        self._step, self._clock = step, clock
        self._last = -math.inf
        self.times: list[float] = []  # milliseconds, in order

    def measure_drift(self) -> None:
        """Measure the step a few times, unless that was done just now."""
        if self._clock() - self._last < PAUSE_S:
            return
        self._step()
        self.times += [self._step() for _ in range(STEPS)]
        self._last = self._clock()

    def noise(self, foreign_cpu: float | None) -> Noise:
        """Return the scatter of the step's times, and their change from the first third to the last."""
        low, median, high = np.percentile(self.times, (10, 50, 90))
        third = max(1, len(self.times) // 3)
        first, last = np.median(self.times[:third]), np.median(self.times[-third:])
        return Noise(float((high - low) / 2 / median), float(last / first - 1), foreign_cpu)


def slope(seconds: Sequence[float], rates: Sequence[float]) -> tuple[float, float, float]:
    """Change of the rates per minute, as a fraction of their mean, with its 95% confidence interval: a straight line
    by least squares. With fewer than three rates, or all of one moment, it is unknown, and all three are 0."""
    free = len(rates) - 2  # degrees of freedom
    if free < 1 or len(set(seconds)) == 1:
        return 0.0, 0.0, 0.0
    (steep, _), covariance = np.polyfit(seconds, rates, 1, cov=True)
    quantile = STUDENT[free - 1] if free <= len(STUDENT) else 1.96 + 2.7 / free
    scale, off = 60 / float(np.mean(rates)), quantile * math.sqrt(covariance[0, 0])
    return float(steep) * scale, (float(steep) - off) * scale, (float(steep) + off) * scale


def sustain(
    subject: Subject,
    context: int,
    until: float,
    energy: Energy,
    tell: Callable[[], None],
    clock: Clock = time.monotonic,
) -> tuple[Sustained, Usage]:
    """Generate answers in a row, of one length and at the same context, until the clock shows `until`."""
    room = subject.capacity - context - 1
    token_ms = min(subject.decode(context, min(4, room)))
    # On a slow device an answer is shorter, so that there are several, and several rates.
    allowed_ms = max(0.0, until - clock()) * 1e3 / LEAST_RATES
    count = max(1, min(room, ANSWER_TOKENS, max(8, int(min(RATE_S * 1e3, allowed_ms) / token_ms))))
    rates, joules = list[Rate](), list[float]()
    start, cpu, answers, total_ms = clock(), time.process_time(), 0, 0.0
    took = 0.0  # by one rate
    while len(rates) < LEAST_RATES or clock() + took <= until:
        began, tokens, ms = clock(), 0, 0.0
        with energy.metered() as found:
            while not tokens or ms + token_ms * count / 2 < min(RATE_S * 1e3, allowed_ms):
                ms += sum(subject.decode(context, count))
                tokens += count
        joules += found
        answers, total_ms = answers + tokens // count, total_ms + ms
        took = clock() - began
        rates.append(Rate(round(clock() - start, 6), 1e3 * tokens / ms, context + count // 2))
        tell()
    steep, low, high = slope([rate.second for rate in rates], [rate.tokens_per_s for rate in rates])
    # The first token of each answer is run, and not timed.
    taken = answers * (count + 1), clock() - start, time.process_time() - cpu
    return Sustained(1e3 * answers * count / total_ms, steep, low, high, rates), energy.usage("decode", *taken, joules)
