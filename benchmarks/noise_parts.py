"""What computed noises are put together from: tones, shaped noise, and short sounds one after the other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

RATE = 16_000
Samples = NDArray[np.float64]


def clock(count: int) -> Samples:
    return np.arange(count) / RATE


def white(random: np.random.Generator, count: int) -> Samples:
    return random.standard_normal(count)


def shaped(random: np.random.Generator, count: int, gain: Callable[[Samples], Samples]) -> Samples:
    """White noise whose amplitude at each frequency is multiplied by `gain`."""
    spectrum = np.fft.rfft(white(random, count))
    return np.fft.irfft(spectrum * gain(np.maximum(np.fft.rfftfreq(count, 1 / RATE), 1.0)), count)


def sloped(random: np.random.Generator, count: int, slope: float) -> Samples:
    """Noise whose power falls as frequency to the `slope`: 1 is pink, 2 brown; nothing below 20 Hz."""
    return shaped(random, count, lambda hertz: np.where(hertz < 20, 0, hertz ** (-slope / 2)))


def band(random: np.random.Generator, count: int, low: float, high: float) -> Samples:
    """Noise between two frequencies, with soft edges."""
    return shaped(random, count, lambda hertz: 1 / (1 + (low / hertz) ** 4) / (1 + (hertz / high) ** 4))


def unit(samples: Samples) -> Samples:
    return samples / np.sqrt(np.square(samples).mean())


def tones(count: int, hertz: float, amplitudes: list[float], random: np.random.Generator) -> Samples:
    """A tone and its harmonics, in phases that are drawn."""
    turns = 2 * np.pi * hertz * clock(count)
    phases = random.uniform(0, 2 * np.pi, len(amplitudes))
    return sum(a * np.sin(n * turns + p) for n, (a, p) in enumerate(zip(amplitudes, phases, strict=True), 1))


def slow(random: np.random.Generator, count: int, hertz: float) -> Samples:
    """A smooth curve of mean 0 and deviation 1 that changes at most `hertz` times a second."""
    return unit(shaped(random, count, lambda f: (f < hertz).astype(float)) + 1e-12)


def hits(
    random: np.random.Generator, count: int, times: Samples, shape: Callable[[np.random.Generator], Samples]
) -> Samples:
    """A short sound at each of the times in seconds."""
    made = np.zeros(count)
    for at in (times * RATE).astype(int):
        hit = shape(random)[: max(count - at, 0)]
        made[at : at + len(hit)] += hit
    return made


def scattered(random: np.random.Generator, count: int, per_second: float) -> Samples:
    number = random.poisson(per_second * count / RATE) + 1
    return np.sort(random.uniform(0, count / RATE, number))


def burst(random: np.random.Generator, seconds: float, low: float, high: float) -> Samples:
    """A burst of noise that dies away."""
    count = round(5 * seconds * RATE)
    return band(random, count, low, high) * np.exp(-clock(count) / seconds)


def ring(seconds: float, hertz: float, harmonics: int = 1) -> Samples:
    """A tone that dies away, its harmonics sooner."""
    count = round(5 * seconds * RATE)
    t = clock(count)
    parts = (np.sin(2 * np.pi * n * hertz * t) * np.exp(-n * t / seconds) / n for n in range(1, harmonics + 1))
    return sum(parts) * np.minimum(1, t * 200)
