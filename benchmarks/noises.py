"""Sounds without a word, computed: machines, weather, rooms, hands at work, music, signals, faults of a recorder.

Each kind is drawn from its name and a seed, so that the same call gives the same samples.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
from noise_parts import (
    RATE,
    Samples,
    band,
    burst,
    clock,
    hits,
    ring,
    scattered,
    sloped,
    slow,
    tones,
    unit,
    white,
)
from numpy.typing import NDArray

Made = Callable[[np.random.Generator, int], Samples]
SEMITONE = 2 ** (1 / 12)


def noise(kind: str, seconds: float, level: float, seed: int = 0) -> NDArray[np.float32]:
    """Samples [N] at 16 kHz of one of `KINDS`, mono; their root mean square is `level` dB of full scale, 1."""
    random = np.random.default_rng([zlib.crc32(kind.encode()), seed])
    made = KINDS[kind](random, round(seconds * RATE))
    made = made / np.sqrt(np.square(made).mean()) * 10 ** (level / 20)
    return np.clip(made, -1, 1).astype(np.float32)


def _hum(hertz: float) -> Made:
    amplitudes = [1, 0.5, 0.35, 0.12, 0.2, 0.06, 0.1, 0.03, 0.05]
    return lambda random, count: tones(count, hertz, amplitudes, random) + 0.02 * white(random, count)


def _fan(random: np.random.Generator, count: int) -> Samples:
    air = unit(sloped(random, count, 1.3)) * (1 + 0.05 * np.sin(2 * np.pi * 19 * clock(count)))
    return air + tones(count, 133 * random.uniform(0.9, 1.1), [0.3, 0.15, 0.08], random)


def _computer(random: np.random.Generator, count: int) -> Samples:
    return unit(band(random, count, 200, 3000)) + tones(count, 420, [0.4, 0.2, 0.1, 0.05], random)


def _hvac(random: np.random.Generator, count: int) -> Samples:
    air = unit(band(random, count, 40, 400)) * (1 + 0.2 * slow(random, count, 0.5))
    return air + tones(count, 58, [0.3], random)


def _room(random: np.random.Generator, count: int) -> Samples:
    hum = tones(count, 50, [0.1, 0.1, 0.05], random)
    return unit(sloped(random, count, 1.6)) + 0.1 * white(random, count) + hum


def _typing(random: np.random.Generator, count: int) -> Samples:
    def key(random: np.random.Generator) -> Samples:
        down, up = burst(random, 0.006, 800, 5000), burst(random, 0.004, 1500, 6000)
        made = np.zeros(round(0.15 * RATE))
        made[: len(down)] += down * random.uniform(0.5, 1.5)
        at = round(random.uniform(0.06, 0.1) * RATE)
        made[at : at + len(up)] += 0.5 * up
        return made

    gaps = random.gamma(4, 0.04, 10 * count // RATE + 1) + (random.random(10 * count // RATE + 1) < 0.1) * 0.6
    return hits(random, count, np.cumsum(gaps), key) + 0.003 * white(random, count)


def _clock(random: np.random.Generator, count: int) -> Samples:
    times = np.arange(0.2, count / RATE, 0.5)
    return hits(random, count, times, lambda r: burst(r, 0.004, 1800, 5000)) + 1e-3 * white(random, count)


def _knocks(random: np.random.Generator, count: int) -> Samples:
    times = np.concatenate([start + np.array([0, 0.22, 0.44]) for start in np.arange(0.5, count / RATE, 2.5)])
    return hits(random, count, times, lambda r: burst(r, 0.03, 80, 900)) + 1e-3 * white(random, count)


def _steps(random: np.random.Generator, count: int) -> Samples:
    times = np.arange(0.3, count / RATE, 0.55) + random.normal(0, 0.02, len(np.arange(0.3, count / RATE, 0.55)))
    return hits(random, count, times, lambda r: burst(r, 0.04, 60, 1500)) + 3e-3 * white(random, count)


def _paper(random: np.random.Generator, count: int) -> Samples:
    rustle = band(random, count, 1500, 7000) * np.maximum(0, slow(random, count, 6)) ** 2
    return rustle + 1e-3 * white(random, count)


def _crackle(random: np.random.Generator, count: int) -> Samples:
    made = np.zeros(count)
    at = random.integers(0, count, 12 * count // RATE)
    made[at] = random.standard_normal(len(at)) * random.exponential(1, len(at))
    return made + 0.01 * sloped(random, count, 1)


def _fire(random: np.random.Generator, count: int) -> Samples:
    return 0.3 * unit(sloped(random, count, 1.8)) + hits(
        random, count, scattered(random, count, 9), lambda r: r.exponential(4) * burst(r, 0.002, 500, 6000)
    )


def _rain(random: np.random.Generator, count: int) -> Samples:
    drops = hits(random, count, scattered(random, count, 60), lambda r: r.exponential(1) * burst(r, 0.003, 2000, 7000))
    return unit(band(random, count, 500, 7500)) + drops


def _wind(random: np.random.Generator, count: int) -> Samples:
    return sloped(random, count, 2) * np.exp(0.8 * slow(random, count, 1.5))


def _waves(random: np.random.Generator, count: int) -> Samples:
    return sloped(random, count, 1) * (1.1 + np.sin(2 * np.pi * clock(count) / 7 + random.uniform(0, 6))) ** 2


def _thunder(random: np.random.Generator, count: int) -> Samples:
    times = np.arange(0.5, count / RATE, 6)
    claps = hits(random, count, times, lambda r: burst(r, 1.2, 25, 200))
    return claps + 0.02 * unit(band(random, count, 500, 7500))


def _water(random: np.random.Generator, count: int) -> Samples:
    def bubble(random: np.random.Generator) -> Samples:
        t = clock(round(0.05 * RATE))
        hertz = random.uniform(400, 1800) * (1 + 3 * t)
        return random.exponential(1) * np.sin(2 * np.pi * np.cumsum(hertz) / RATE) * np.exp(-t / 0.012)

    return hits(random, count, scattered(random, count, 40), bubble) + 0.3 * unit(band(random, count, 300, 5000))


def _engine(random: np.random.Generator, count: int) -> Samples:
    turns = np.cumsum(28 * (1 + 0.04 * slow(random, count, 0.7))) / RATE
    strokes = sum(np.sin(2 * np.pi * n * turns + n * n) / n**0.7 for n in range(1, 25))
    return strokes + 0.5 * unit(sloped(random, count, 1))


def _motorbike(random: np.random.Generator, count: int) -> Samples:
    rev = 60 + 50 * (1 + np.sin(2 * np.pi * clock(count) / 4))
    turns = np.cumsum(rev) / RATE
    return sum(np.sin(2 * np.pi * n * turns + n) / n**0.5 for n in range(1, 20)) + 0.3 * white(random, count)


def _train(random: np.random.Generator, count: int) -> Samples:
    times = np.concatenate([start + np.array([0, 0.16]) for start in np.arange(0.3, count / RATE, 0.95)])
    rumble = unit(band(random, count, 40, 500))
    return rumble + 3 * hits(random, count, times, lambda r: burst(r, 0.05, 100, 1200))


def _vacuum(random: np.random.Generator, count: int) -> Samples:
    return unit(band(random, count, 300, 6000)) + tones(count, 245, [0.5, 0.3, 0.3, 0.1, 0.1], random)


def _drill(random: np.random.Generator, count: int) -> Samples:
    on = (np.sin(2 * np.pi * clock(count) / 3) > -0.3) + 0.01
    return (tones(count, 180, [1, 0.8, 0.9, 0.5, 0.6, 0.4, 0.3], random) + white(random, count)) * on


def _beeps(random: np.random.Generator, count: int) -> Samples:
    t = clock(count)
    return np.sin(2 * np.pi * 2048 * t) * ((t % 1 < 0.12) | ((t + 0.75) % 1 < 0.12)) + 1e-3 * white(random, count)


def _siren(random: np.random.Generator, count: int) -> Samples:
    hertz = 900 + 350 * np.sin(2 * np.pi * clock(count) / 3)
    turns = np.cumsum(hertz) / RATE
    return np.sin(2 * np.pi * turns) + 0.3 * np.sin(4 * np.pi * turns) + 0.02 * white(random, count)


def _dial(random: np.random.Generator, count: int) -> Samples:
    return tones(count, 350, [1], random) + tones(count, 440, [1], random) + 0.003 * white(random, count)


def _busy(random: np.random.Generator, count: int) -> Samples:
    t = clock(count)
    return (np.sin(2 * np.pi * 480 * t) + np.sin(2 * np.pi * 620 * t)) * (t % 1 < 0.5) + 0.003 * white(random, count)


def _keys(random: np.random.Generator, count: int) -> Samples:
    """A telephone's number, dialled."""
    t, made = clock(round(0.12 * RATE)), np.zeros(count)
    for start in range(RATE // 4, count - RATE, RATE // 4):
        low, high = random.choice([697, 770, 852, 941]), random.choice([1209, 1336, 1477])
        made[start : start + len(t)] = np.sin(2 * np.pi * low * t) + np.sin(2 * np.pi * high * t)
    return made + 0.003 * white(random, count)


def _sweep(random: np.random.Generator, count: int) -> Samples:
    hertz = 100 * 60 ** (clock(count) / (count / RATE))
    return np.sin(2 * np.pi * np.cumsum(hertz) / RATE)


def _tone(random: np.random.Generator, count: int) -> Samples:
    return tones(count, 1000, [1], random) + 1e-4 * white(random, count)


def _feedback(random: np.random.Generator, count: int) -> Samples:
    squeal = tones(count, 2830, [1, 0.1], random) * np.exp(0.6 * slow(random, count, 1))
    return squeal + 0.05 * sloped(random, count, 1)


def _clipped(random: np.random.Generator, count: int) -> Samples:
    return np.clip(unit(sloped(random, count, 1)), -0.3, 0.3)


def _offset(random: np.random.Generator, count: int) -> Samples:
    """A recorder's direct current, and dither."""
    return 1 + 0.002 * white(random, count)


def _buzz(random: np.random.Generator, count: int) -> Samples:
    """A telephone's radio next to a cable: bursts 217 times a second."""
    t = clock(count)
    return ((t * 217) % 1 < 0.125) * (1.0 * (t % 1.2 < 0.7)) * random.uniform(0.8, 1.2) + 0.01 * white(random, count)


def _chords(random: np.random.Generator, count: int, *, rings: float, harmonics: int, beat: float) -> Samples:
    """Chords of a key, a melody over them."""
    made = np.zeros(count)
    roots = [0, 9, 5, 7]
    for i, start in enumerate(np.arange(0, count / RATE, beat)):
        root, third = roots[i // 4 % 4], 3 if roots[i // 4 % 4] == 9 else 4
        notes = [root, root + third, root + 7] if i % 2 == 0 else []
        notes.append(12 + root + int(random.choice([0, third, 7, 12])))
        for note in notes:
            tone = ring(rings, 220 * SEMITONE**note, harmonics)[: max(0, count - int(start * RATE))]
            made[int(start * RATE) : int(start * RATE) + len(tone)] += tone
    return made


def _piano(random: np.random.Generator, count: int) -> Samples:
    return _chords(random, count, rings=0.5, harmonics=6, beat=0.4) + 1e-3 * white(random, count)


def _organ(random: np.random.Generator, count: int) -> Samples:
    parts = [tones(count, 110 * SEMITONE**n, [1, 0.6, 0.3, 0.4, 0.1, 0.1, 0.1, 0.2], random) for n in (0, 7, 12, 16)]
    return sum(parts) * (1 + 0.1 * np.sin(2 * np.pi * 5.5 * clock(count)))


def _drums(random: np.random.Generator, count: int) -> Samples:
    every = np.arange(0, count / RATE, 0.25)
    kick = hits(random, count, every[::4], lambda r: 3 * ring(0.08, 60, 2))
    snare = hits(random, count, every[2::4], lambda r: 20 * burst(r, 0.05, 200, 5000) / RATE**0.5)
    return kick + snare + hits(random, count, every, lambda r: 10 * burst(r, 0.012, 4000, 7500) / RATE**0.5)


def _band_of_three(random: np.random.Generator, count: int) -> Samples:
    beats = np.arange(0, count / RATE, 0.5)
    bass = hits(random, count, beats, lambda r: ring(0.25, 55 * SEMITONE ** int(r.choice([0, 5, 7])), 5))
    return 0.7 * unit(_drums(random, count)) + 0.7 * unit(_piano(random, count)) + 0.6 * unit(bass)


def _violin(random: np.random.Generator, count: int) -> Samples:
    notes = np.repeat(random.choice([0, 2, 4, 5, 7, 9, 11, 12], count // (RATE // 2) + 1), RATE // 2)[:count]
    turns = np.cumsum(440 * SEMITONE**notes * (1 + 0.006 * np.sin(2 * np.pi * 5.5 * clock(count)))) / RATE
    bow = np.minimum(1, (clock(count) % 0.5) * 15) * np.minimum(1, (0.5 - clock(count) % 0.5) * 15)
    return sum(np.sin(2 * np.pi * n * turns) / n for n in range(1, 9)) * (0.2 + bow) + 0.02 * white(random, count)


def _whistle(random: np.random.Generator, count: int) -> Samples:
    notes = np.repeat(random.choice([0, 2, 4, 7, 9], count // (RATE // 3) + 1), RATE // 3)[:count]
    turns = np.cumsum(1000 * SEMITONE**notes * (1 + 0.004 * slow(random, count, 6))) / RATE
    breath = 0.6 + 0.4 * np.sin(2 * np.pi * 1.5 * clock(count))
    return np.sin(2 * np.pi * turns) * breath + 0.02 * white(random, count)


def _birds(random: np.random.Generator, count: int) -> Samples:
    def chirp(random: np.random.Generator) -> Samples:
        t = clock(round(random.uniform(0.05, 0.2) * RATE))
        hertz = random.uniform(2500, 4500) + random.uniform(-8000, 8000) * t + 400 * np.sin(2 * np.pi * 30 * t)
        return np.sin(2 * np.pi * np.cumsum(hertz) / RATE) * np.sin(np.pi * t / t[-1])

    return hits(random, count, scattered(random, count, 3), chirp) + 0.01 * unit(sloped(random, count, 1))


def _crickets(random: np.random.Generator, count: int) -> Samples:
    t = clock(count)
    return np.sin(2 * np.pi * 4300 * t) * (t % 0.045 < 0.02) * (t % 0.6 < 0.25) + 0.02 * white(random, count)


def _bark(random: np.random.Generator, count: int) -> Samples:
    def one(random: np.random.Generator) -> Samples:
        t = clock(round(0.18 * RATE))
        turns = np.cumsum(350 + 450 * np.sin(np.pi * t / t[-1])) / RATE
        voice = sum(np.sin(2 * np.pi * n * turns) / n**0.5 for n in range(1, 9))
        return (voice + 0.5 * random.standard_normal(len(t))) * np.sin(np.pi * t / t[-1])

    return hits(random, count, np.arange(0.5, count / RATE, 1.1), one) + 2e-3 * white(random, count)


def _breath(random: np.random.Generator, count: int) -> Samples:
    air = band(random, count, 300, 3000) * np.maximum(0, np.sin(2 * np.pi * clock(count) / 3.5)) ** 2
    return air + 1e-3 * white(random, count)


def _applause(random: np.random.Generator, count: int) -> Samples:
    return hits(random, count, scattered(random, count, 120), lambda r: r.exponential(1) * burst(r, 0.008, 600, 4000))


def _dishes(random: np.random.Generator, count: int) -> Samples:
    def clink(random: np.random.Generator) -> Samples:
        return sum(random.uniform(0.3, 1) * ring(0.05, hertz) for hertz in random.uniform(1800, 6500, 4))

    return hits(random, count, scattered(random, count, 2.5), clink) + 0.01 * unit(sloped(random, count, 1))


def _buzzing(turns: Samples, harmonics: int) -> Samples:
    """A pulse for each whole turn: so many cosines in phase, as their sum in closed form."""
    half = np.pi * turns + 1e-9
    return (np.sin((2 * harmonics + 1) * half) / np.sin(half) - 1) / 2


def _crowd(random: np.random.Generator, count: int) -> Samples:
    """Many voices far away, of which no word is left: buzzes through formants that wander, from all sides."""
    made = np.zeros(count)
    for _ in range(24):
        turns = np.cumsum(random.uniform(90, 240) * (1 + 0.1 * slow(random, count, 3))) / RATE
        voice = _buzzing(turns, 15)
        spectrum = np.fft.rfft(voice * np.maximum(0, 0.5 + slow(random, count, 4)))
        hertz = np.fft.rfftfreq(count, 1 / RATE)
        gain = sum(1 / (1 + ((hertz - f) / 120) ** 2) for f in random.uniform([300, 900, 2200], [800, 1800, 3000]))
        made += np.fft.irfft(spectrum * gain * np.exp(1j * random.uniform(0, 2 * np.pi, len(hertz)) * 0.3), count)
    return unit(made) + 0.2 * unit(sloped(random, count, 1))


def _radio(random: np.random.Generator, count: int) -> Samples:
    tune = np.sin(2 * np.pi * np.cumsum(800 + 600 * slow(random, count, 2)) / RATE)
    return unit(band(random, count, 300, 3400)) * (1 + 0.5 * np.abs(slow(random, count, 5))) + 0.4 * tune


def _modem(random: np.random.Generator, count: int) -> Samples:
    bits = np.repeat(random.integers(0, 2, count // 53 + 1), 53)[:count]
    return np.sin(2 * np.pi * np.cumsum(np.where(bits, 1200, 2200)) / RATE) + 0.01 * white(random, count)


KINDS: dict[str, Made] = {
    "hum of 50 Hz": _hum(50),
    "hum of 60 Hz": _hum(60),
    "fan": _fan,
    "computer": _computer,
    "ventilation": _hvac,
    "room tone": _room,
    "white noise": white,
    "pink noise": lambda random, count: sloped(random, count, 1),
    "brown noise": lambda random, count: sloped(random, count, 2),
    "typing": _typing,
    "clock": _clock,
    "knocks": _knocks,
    "steps": _steps,
    "paper": _paper,
    "dishes": _dishes,
    "crackle": _crackle,
    "fire": _fire,
    "rain": _rain,
    "wind": _wind,
    "waves": _waves,
    "thunder": _thunder,
    "water": _water,
    "engine": _engine,
    "motorbike": _motorbike,
    "train": _train,
    "vacuum cleaner": _vacuum,
    "drill": _drill,
    "alarm": _beeps,
    "siren": _siren,
    "dial tone": _dial,
    "busy tone": _busy,
    "dialling": _keys,
    "modem": _modem,
    "radio": _radio,
    "tone": _tone,
    "sweep": _sweep,
    "feedback": _feedback,
    "clipped noise": _clipped,
    "direct current": _offset,
    "buzz of a telephone": _buzz,
    "piano": _piano,
    "organ": _organ,
    "drums": _drums,
    "band": _band_of_three,
    "violin": _violin,
    "whistling": _whistle,
    "birds": _birds,
    "crickets": _crickets,
    "barking": _bark,
    "breathing": _breath,
    "applause": _applause,
    "crowd": _crowd,
}
