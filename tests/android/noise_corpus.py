"""Noise as a speech model hears it, and what the rule for noise says, in files for the tests in Kotlin.

    python tests/android/noise_corpus.py BUNDLE FOLDER

This writes `noise.jsonl` for one bundle; the verdicts need no model.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from noises import KINDS, noise

from edge.runtime.check.conformance_speech import DOUBTED
from edge.runtime.load import load
from edge.runtime.speech.evidence import Evidence, said_before
from edge.runtime.speech.transcribe import Transcriber

LEVELS, SECONDS = (-45, -20, -8), (2, 4, 8)  # dB of full scale: nearly silent to loud
OPTIONS: list[dict[str, Any]] = [
    {"temperatures": [0.0]},
    {"temperatures": [0.0, 0.7], "compression_ratio_threshold": 1.0, "seed": 2},
    {"temperatures": [0.6], "language": "haw", "seed": 2},
]


def write(file: Path, lines: int, seed: int) -> None:
    """One JSON object a line: the words of a `text`, which of them are `repeated`, what a sound added to the log
    probability of each, `likelier`, and whether the text is `imagined` or `weak` by that."""
    random = np.random.default_rng(seed)
    with file.open("w", encoding="utf-8") as out:
        for _ in range(lines):
            words = random.integers(1, random.choice([6, 80]))
            likelier = random.normal(random.uniform(0, 1.2), random.choice([0.1, 1, 4]), words)
            text = random.integers(0, random.choice([4, 40, 400]), words).tolist()
            evidence = Evidence(likelier, said_before(text))
            verdicts = {"imagined": evidence.imagined, "weak": evidence.weak}
            line = {"text": text, "repeated": evidence.repeated.tolist(), "likelier": likelier.tolist(), **verdicts}
            print(json.dumps(line), file=out)


def hear(bundle: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """Lines such as `speech.jsonl` has, of noise of every kind, where each text is doubted."""
    model = load(bundle, speculate="off", kind=Transcriber)
    for i, kind in enumerate(KINDS):
        samples = noise(kind, SECONDS[i % 3], LEVELS[i % 3])
        sound = folder / f"{kind.replace(' ', '-')}.pcm"
        sound.write_bytes(samples.astype("<f4").tobytes())
        options = OPTIONS[i // 3 % 3] | DOUBTED
        segments = model.transcribe(samples, **options).segments
        yield {"sound": sound.name, "options": options, "segments": [dataclasses.asdict(each) for each in segments]}


if __name__ == "__main__":
    target = Path(sys.argv[2])
    lines = [json.dumps(line) for line in hear(Path(sys.argv[1]), target)]
    (target / "noise.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")
