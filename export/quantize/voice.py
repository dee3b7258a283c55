"""A voice that reads sentences: what a speech model is calibrated on where nobody gives a recording.

Speech made of formants, the resonances of a mouth (Klatt, 1980, "Software for a cascade/parallel formant synthesizer"):
every period of the voice rings through five resonances that move from sound to sound, breath and hisses are noise. The
vowels' formants are those of Peterson and Barney (1952). Whisper base understands nine words of ten.

It is synthesized because we know of no recording of several speakers whose licence certainly lets a package carry it,
and two short recordings calibrate Whisper base worse (docs/lab/quantization.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

RATE = 16_000  # samples a second
HOP = 80  # samples in which nothing changes: 5 ms
SPAN = 1024  # samples that a period rings
HERTZ = np.fft.rfftfreq(SPAN, 1 / RATE)
UPPER = (3500.0, 4500.0)  # formants that are the same in all sounds
WIDTHS = (70.0, 100.0, 150.0, 220.0, 300.0)  # of the formants, Hz
PAUSES = {",": 180, ".": 420}  # ms
BREATH, HISS, RASP = 0.02, 0.05, 0.0015  # how loud noise is next to the voice
LOUDEST = 0.25  # sample
EACH = 7  # sentences that a speaker reads

Formants = tuple[float, float, float]


@dataclass(frozen=True)
class Noise:
    """A hiss: how loud, and its middle and width in Hz."""

    level: float
    middle: float
    width: float


@dataclass(frozen=True)
class Sound:
    """A part of a phoneme. begin, end: its formants; those of its neighbours where there are none."""

    ms: float
    begin: Formants | None = None
    end: Formants | None = None
    voice: float = 0.0
    breath: float = 0.0
    hiss: Noise | None = None


@dataclass(frozen=True)
class Speaker:
    """pitch: Hz. speed: 1 is normal. size: of the formants, larger for smaller heads."""

    pitch: float
    speed: float
    size: float


SPEAKERS = [
    Speaker(115, 1.0, 1.0),
    Speaker(190, 0.95, 1.15),
    Speaker(140, 0.85, 1.05),
    Speaker(100, 1.1, 0.97),
    Speaker(210, 1.05, 1.18),
    Speaker(125, 0.95, 1.0),
    Speaker(175, 1.0, 1.1),
    Speaker(105, 0.9, 1.02),
    Speaker(200, 0.9, 1.12),
    Speaker(130, 1.1, 0.98),
]

# By their names in ARPAbet.
VOWELS: dict[str, tuple[int, Formants, Formants | None]] = {
    "AA": (125, (730, 1090, 2440), None),
    "AE": (130, (660, 1720, 2410), None),
    "AH": (75, (600, 1190, 2390), None),
    "AO": (130, (570, 840, 2410), None),
    "EH": (100, (530, 1840, 2480), None),
    "ER": (115, (490, 1350, 1690), None),
    "IH": (75, (390, 1990, 2550), None),
    "IY": (110, (270, 2290, 3010), None),
    "UH": (80, (440, 1020, 2240), None),
    "UW": (115, (300, 870, 2240), None),
    "AY": (170, (700, 1200, 2440), (320, 2150, 2800)),
    "AW": (170, (700, 1250, 2440), (400, 900, 2300)),
    "EY": (145, (500, 1900, 2500), (300, 2250, 2900)),
    "OW": (145, (540, 950, 2350), (350, 850, 2250)),
}
SONORANTS: dict[str, tuple[float, Formants]] = {
    "M": (0.35, (280, 1000, 2200)),
    "N": (0.35, (280, 1600, 2600)),
    "NG": (0.35, (280, 2200, 2700)),
    "L": (0.6, (360, 1200, 2750)),
    "R": (0.65, (330, 1100, 1450)),
    "W": (0.6, (290, 650, 2200)),
    "Y": (0.6, (270, 2200, 3000)),
}
FRICATIVES: dict[str, tuple[int, float, Formants, Noise]] = {
    "S": (105, 0.0, (320, 1700, 2600), Noise(0.5, 5500, 1600)),
    "Z": (80, 0.35, (300, 1700, 2600), Noise(0.28, 5500, 1600)),
    "SH": (110, 0.0, (320, 1900, 2500), Noise(0.5, 3000, 1200)),
    "F": (95, 0.0, (320, 1100, 2200), Noise(0.14, 4500, 3500)),
    "V": (60, 0.4, (300, 1100, 2200), Noise(0.08, 4500, 3500)),
    "TH": (90, 0.0, (320, 1400, 2600), Noise(0.1, 5500, 3000)),
    "DH": (50, 0.45, (300, 1400, 2600), Noise(0.05, 5500, 3000)),
}
STOPS: dict[str, tuple[float, Formants, Noise]] = {
    "P": (0.0, (300, 800, 2200), Noise(0.5, 900, 900)),
    "B": (0.15, (250, 800, 2200), Noise(0.5, 900, 900)),
    "T": (0.0, (300, 1750, 2650), Noise(0.5, 4200, 1600)),
    "D": (0.15, (250, 1750, 2650), Noise(0.5, 3800, 1600)),
    "K": (0.0, (300, 1900, 2300), Noise(0.5, 2000, 700)),
    "G": (0.15, (250, 1900, 2300), Noise(0.5, 2000, 700)),
}
AFFRICATES = {"CH": 0.0, "JH": 0.15}


def passages() -> list[tuple[str, Speaker]]:
    """Half a minute's sentences for each speaker, which others read in another order."""
    sentences = (files(__package__) / "voice.txt").read_text(encoding="utf-8").splitlines()
    random = np.random.default_rng(0)
    return [(" ".join(random.permutation(sentences)[:EACH]), speaker) for speaker in SPEAKERS]


def read(sentences: str, speaker: Speaker, seed: int = 0) -> NDArray[np.float32]:
    """Samples [N] at 16 kHz of sentences in ARPAbet, phonemes, commas and full stops apart.

    The same seed gives the same samples.
    """
    random = np.random.default_rng(seed)
    sounds = [sound for each in _sounds(sentences.split()) for sound in _lasting(each, speaker.speed, random)]
    formants = _path(sounds) * speaker.size  # [frames, 3]
    voice = _smooth(np.array([sound.voice for sound in sounds]), 5)
    breath = _smooth(np.array([sound.breath for sound in sounds]), 5)
    pitch = speaker.pitch * _melody(sounds, random)
    samples = np.zeros(len(sounds) * HOP + SPAN)
    tilt = (HERTZ > 0) / (1 + 1j * HERTZ / 300)  # of the voice
    at = 0.0
    while at < len(sounds) * HOP:
        frame = int(at / HOP)
        if voice[frame] > 0.02:
            period = np.fft.irfft(tilt * _resonance(formants[frame]))
            samples[int(at) : int(at) + SPAN] += period * voice[frame] * random.uniform(0.95, 1.05)
        at += RATE / pitch[frame] * random.uniform(0.99, 1.01)
    grain = np.hanning(2 * HOP)
    for frame, sound in enumerate(sounds):
        through = BREATH * breath[frame] + (RASP if voice[frame] > 0.3 else 0.0)
        spectrum = through * _resonance(formants[frame])
        if sound.hiss is not None:
            spectrum += HISS * sound.hiss.level * np.exp(-(((HERTZ - sound.hiss.middle) / sound.hiss.width) ** 2))
        noise = np.fft.rfft(random.standard_normal(len(grain)) * grain, SPAN)
        samples[frame * HOP : frame * HOP + SPAN] += np.fft.irfft(noise * spectrum)
    return (samples * (LOUDEST / max(np.abs(samples).max(), 1e-9))).astype(np.float32)


def _sounds(phonemes: list[str]) -> list[Sound]:
    found = []
    for i, name in enumerate(phonemes):
        if name in PAUSES:
            found.append(Sound(PAUSES[name]))
        elif name in VOWELS:
            ms, begin, end = VOWELS[name]
            found.append(Sound(ms, begin, end or begin, voice=1.0))
        elif name in SONORANTS:
            level, formants = SONORANTS[name]
            found.append(Sound(70, formants, formants, voice=level))
        elif name in FRICATIVES:
            ms, level, formants, noise = FRICATIVES[name]
            found.append(Sound(ms, formants, formants, voice=level, hiss=noise))
        elif name in AFFRICATES:
            formants = (300, 1850, 2500)
            found.append(Sound(45, formants, formants, voice=AFFRICATES[name]))
            found.append(Sound(75, formants, formants, voice=AFFRICATES[name], hiss=Noise(0.45, 3000, 1300)))
        elif name in STOPS:
            level, formants, noise = STOPS[name]
            found.append(Sound(50, formants, formants, voice=level))
            found.append(Sound(14, formants, formants, hiss=noise))
            before, after = phonemes[i - 1 : i], phonemes[i + 1 : i + 2]
            if not level and before != ["S"] and (after[:1] and (after[0] in VOWELS or after[0] in SONORANTS)):
                found.append(Sound(35, breath=0.35))
        else:
            assert name == "HH", name
            found.append(Sound(65, breath=0.5))
    return found


def _lasting(sound: Sound, speed: float, random: np.random.Generator) -> list[Sound]:
    """The sound, frame by frame."""
    count = max(2, int(sound.ms / speed * random.uniform(0.9, 1.1) * RATE / 1000 / HOP))
    begin, end = sound.begin, sound.end
    if begin is None or end is None:
        return [sound] * count
    frames = []
    for part in np.linspace(0, 1, count):
        first, second, third = np.array(begin) * (1 - part) + np.array(end) * part
        frames.append(Sound(sound.ms, (first, second, third), None, sound.voice, sound.breath, sound.hiss))
    return frames


def _path(frames: list[Sound]) -> NDArray[np.float64]:
    """Formants [frames, 3] that pass from sound to sound."""
    known = [i for i, frame in enumerate(frames) if frame.begin is not None]
    places = np.array([frames[i].begin for i in known])
    return np.stack([_smooth(np.interp(np.arange(len(frames)), known, column), 11) for column in places.T], 1)


def _melody(frames: list[Sound], random: np.random.Generator) -> NDArray[np.float64]:
    """The pitch over the speaker's: it falls in each phrase, and moves."""
    melody, since, bend, towards = np.empty(len(frames)), 0, 0.0, 0.0
    for i, frame in enumerate(frames):
        pause = frame.begin is None and not frame.breath
        since = 0 if pause else since + 1
        if i % 40 == 0:
            towards = random.uniform(-0.08, 0.14)
        bend += 0.05 * (towards - bend)
        melody[i] = 1.12 - 0.22 * min(1, since / 500) + bend
    return melody


def _resonance(formants: NDArray[np.float64]) -> NDArray[np.complex128]:
    """Return the gain of the vocal tract at each frequency, from its formants."""
    made = np.ones(len(HERTZ), np.complex128)
    for middle, width in zip((*formants, *UPPER), WIDTHS, strict=True):
        made *= middle**2 / (middle**2 - HERTZ**2 + 1j * HERTZ * width)
    return made


def _smooth(values: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    window = np.hanning(count + 2)[1:-1]
    return np.convolve(np.pad(values, count // 2, mode="edge"), window / window.sum(), "valid")
