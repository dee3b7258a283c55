"""Drift: a slope with its confidence, a step that is measured again and again, and long answers in a row."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import numpy as np
import pytest

from edge.runtime.costs.machine import Energy
from edge.runtime.profile.drift import DriftMeter, slope, sustain

NO_METER = Energy(Path("none"))


def test_a_device_that_slows_down_shows_a_slope() -> None:
    rng = np.random.default_rng(0)
    seconds = np.arange(1.0, 31.0)
    rates = 100 * (1 - 0.1 * seconds / 60) + rng.normal(0, 0.2, 30)
    per_minute, low, high = slope(seconds.tolist(), rates.tolist())
    assert low < -0.105 < high < 0 and per_minute == pytest.approx(-0.105, abs=0.02)


def test_noise_alone_is_no_slope() -> None:
    rng = np.random.default_rng(1)
    certain = 0
    for _ in range(300):
        _, low, high = slope([1.0, 2.0, 3.0, 4.0, 5.0], rng.normal(100, 3, 5).tolist())
        certain += low > 0 or high < 0
    assert certain < 0.08 * 300  # a 95% interval


def test_two_rates_or_one_moment_tell_no_slope() -> None:
    assert slope([1.0, 2.0], [100.0, 50.0]) == (0, 0, 0)
    assert slope([1.0, 1.0, 1.0], [100.0, 50.0, 70.0]) == (0, 0, 0)


def test_the_drift_meter_tells_spread_and_drift() -> None:
    times = iter([9.0, 10.0, 10.0, 11.0, 10.0, 10.0] * 3 + [9.0, 12.0, 12.0, 12.0, 12.0, 12.0] * 2)
    ticks = count(0, 10)
    meter = DriftMeter(lambda: next(times), clock=lambda: float(next(ticks)))
    for _ in range(5):
        meter.measure_drift()
    noise = meter.noise(0.25)
    assert len(meter.times) == 25 and noise.drift == pytest.approx(0.2) and noise.foreign_cpu == 0.25
    assert noise.spread == pytest.approx((12 - 10) / 2 / 11)


def test_drift_is_not_measured_twice_in_a_row() -> None:
    meter = DriftMeter(lambda: 1.0, clock=lambda: 5.0)
    meter.measure_drift()
    meter.measure_drift()
    assert len(meter.times) == 5


class FakeSubject:
    """Output tokens that take as long as the clock says, slower by the second."""

    capacity = 1000

    def __init__(self, token_ms: float, slower: float = 0.0) -> None:
        self.now, self.token_ms, self.slower = 0.0, token_ms, slower
        self.answers: list[tuple[int, int]] = []

    def decode(self, context: int, tokens: int) -> list[float]:
        self.answers.append((context, tokens))
        times = []
        for _ in range(tokens):
            times.append(self.token_ms * (1 + self.slower * self.now))
            self.now += times[-1] / 1e3
        return times


def test_answers_in_a_row_are_alike_and_their_rates_a_second_apart() -> None:
    subject = FakeSubject(token_ms=2.0, slower=0.01)
    sustained, used = sustain(subject, 128, 20.0, NO_METER, lambda: None, lambda: subject.now)  # type: ignore[arg-type]
    assert set(subject.answers[1:]) == {(128, 256)} and subject.now <= 21
    gaps = np.diff([rate.second for rate in sustained.rates])
    assert np.all(gaps > 0.7) and np.all(gaps < 1.3)
    assert sustained.slope_high < 0 and 400 < sustained.tokens_per_s < 500
    assert used.phase == "decode" and used.tokens == 257 * (len(subject.answers) - 1) and used.energy_j is None


def test_a_slow_device_gives_short_answers_in_the_time_there_is() -> None:
    subject = FakeSubject(token_ms=100.0)
    sustained, _ = sustain(subject, 128, 3.0, NO_METER, lambda: None, lambda: subject.now)  # type: ignore[arg-type]
    assert len(sustained.rates) >= 3 and subject.now < 4 and sustained.tokens_per_s == pytest.approx(10)
