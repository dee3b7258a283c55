"""Whisper and noise: how many sounds without a word get a text, and whether speech keeps its own.

    python benchmarks/noise.py --bundle whisper.edge --work FOLDER

Noise is computed (`noises.py`), speech fetched (`recordings.py`): whole and in pieces of about 2, 5 and 10 s, as it was
recorded, at -40 dB, and with noise 10 and 5 dB below it. A window is dropped where its text's words are hardly
likelier with the sound than with silence (`edge/runtime/speech/evidence.py`). What had to do with that is transcribed
again without it, and so "before" is known.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import recordings
from noises import KINDS, RATE, noise
from numpy.typing import NDArray

LEVELS = (-45, -32, -20)  # dB of full scale
SECONDS = (8, 5, 10, 3, 12)
QUIET, USUAL = -40, -26  # dB of full scale, of the loud half of speech
OVER = (10, 5)  # dB of speech over noise
PIECES = (2, 5, 10)  # seconds

Sound = tuple[str, NDArray[np.float32]]


def noisy() -> Iterator[Sound]:
    """Every kind at one of the levels and lengths."""
    for i, kind in enumerate(KINDS):
        level = LEVELS[i % len(LEVELS)]
        yield f"{kind}, {level} dB", noise(kind, SECONDS[i % len(SECONDS)], level)


def spoken(work: Path) -> Iterator[Sound]:
    """Recordings and their pieces, in four ways each; each with other noise."""
    found = recordings.fetched(work, lambda line: print(line, file=sys.stderr))
    cut = [piece for one in found for seconds in PIECES for piece in recordings.pieces(one, work, seconds)]
    kinds = list(KINDS)
    for i, one in enumerate([*found, *cut]):
        samples = np.load(one.pcm)
        yield f"{one.name}, {one.seconds:.0f} s", samples
        yield f"{one.name}, {one.seconds:.0f} s, {QUIET} dB", at_level(samples, QUIET)
        for j, over in enumerate(OVER):
            kind = kinds[(7 * i + 3 * j) % len(kinds)]
            added = noise(kind, len(samples) / RATE + 1, USUAL - over)[: len(samples)]
            mixed = np.clip(at_level(samples, USUAL) + added, -1, 1)
            yield f"{one.name}, {one.seconds:.0f} s, {over} dB over {kind}", mixed


def at_level(samples: NDArray[np.float32], level: float) -> NDArray[np.float32]:
    """The same sound; the root mean square of its louder half is `level` dB of full scale."""
    frames = np.square(samples[: len(samples) // 320 * 320].reshape(-1, 320)).mean(axis=1)
    loud = np.sqrt(np.sort(frames)[len(frames) // 2 :].mean())
    return samples * np.float32(10 ** (level / 20) / loud)


def missing(before: str, after: str) -> list[str]:
    """The words of a text that another one has not, however often each is there."""
    return list((Counter(before.split()) - Counter(after.split())).elements())


def hear(model: Any, sounds: Iterator[Sound], language: str | None) -> None:
    """Transcribe; print what had a text or has another, and how many."""
    from edge.runtime.speech import decoding
    from edge.runtime.speech.evidence import Evidence

    gained, doubted = dict[str, list[float]](), list[bool]()

    class Asked(Evidence):
        """Notes what it says."""

        @property
        def imagined(self) -> bool:
            return self._noted(super().imagined)

        @property
        def weak(self) -> bool:
            return self._noted(super().weak)

        def _noted(self, verdict: bool) -> bool:
            doubted.append(verdict)
            gained.setdefault("doubted" if verdict else "kept", []).append(self.gained)
            return verdict

    class Unasked(Evidence):
        """Doubts nothing."""

        imagined = weak = False

    count = had = have = changed = words = lost = 0
    for name, samples in sounds:
        doubted.clear()
        decoding.Evidence = Asked
        text = before = model.transcribe(samples, language=language).text
        if any(doubted):
            decoding.Evidence = Unasked
            before = model.transcribe(samples, language=language).text
        if before:
            print(f"{name}: {before[:60]!r}" + ("" if text == before else f" became {text[:60]!r}"), flush=True)
        count, had, have, changed = count + 1, had + bool(before), have + bool(text), changed + (text != before)
        words, lost = words + len(before.split()), lost + len(missing(before, text))
    print(f"{count} sounds: {had} had a text, {have} have one, {changed} another than before")
    print(f"{lost} of {words} words are there no more")
    for what, values in sorted(gained.items()):
        print(f"{what}: {min(values):.2f} to {max(values):.2f} nats a word from the sound, of {len(values)}")


def main() -> int:
    """Hear noise and speech. Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="where recordings are kept")
    parser.add_argument("--language", help="of all sounds (default: detected)")
    parser.add_argument("--only", choices=("noise", "speech"))
    args = parser.parse_args()

    import edge

    model = edge.load(args.bundle)
    if args.only != "speech":
        hear(model, noisy(), args.language)
    if args.only != "noise":
        args.work.mkdir(parents=True, exist_ok=True)
        hear(model, spoken(args.work), args.language)
    return 0


if __name__ == "__main__":
    sys.exit(main())
