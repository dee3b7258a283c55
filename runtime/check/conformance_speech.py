"""A conformance corpus of a speech model: this runtime's transcriptions of some sounds, for another host to repeat.

`speech.jsonl` has one JSON object per line: `sound`, the name of a file next to it with mono samples as little-endian
float32; `options` as they were given; and the `segments` that came. The same processor gives the same tokens; another
one may choose otherwise in a near-tie, and `golden.json` says what that is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.runtime.load import load
from edge.runtime.providers import AUTO
from edge.runtime.providers.provider import Provider
from edge.runtime.speech.transcribe import Transcriber

SOUNDS = ("command", "sentence", "silence", "gap", "long")
PART_S = 0.1  # of a sound that has one tone
UNJUDGED = {"compression_ratio_threshold": None, "logprob_threshold": None, "no_speech_threshold": None}
DOUBTED = {"no_speech_threshold": 1e-9, "logprob_threshold": -100.0}  # each text is compared with silence


def make_sounds(rate: int, window: int) -> dict[str, NDArray[np.float32]]:
    """Sounds [N] by name: shorter than a window of so many samples, longer than two, silent, and with a
    long gap."""
    random = np.random.default_rng(0)

    def noisy(seconds: float) -> NDArray[np.float32]:
        """Noise, and tones that change."""
        size = round(PART_S * rate)
        times = 2 * np.pi * np.arange(size) / rate
        parts = []
        for _ in range(max(1, round(seconds / PART_S))):
            tone = random.uniform(0, 0.5) * np.sin(times * random.uniform(100, 3000))
            parts.append(tone + random.uniform(0, 0.2) * random.standard_normal(size))
        return np.concatenate(parts).astype(np.float32)

    def quiet(seconds: float) -> NDArray[np.float32]:
        return np.zeros(round(seconds * rate), np.float32)

    return {
        "command": noisy(1.9),
        "sentence": noisy(7.3)[: -rate // 37],  # whose end is no whole timestamp
        "silence": quiet(3.0),
        "gap": np.concatenate([quiet(1.5), noisy(2.4), quiet(6.0), noisy(1.2), quiet(0.5)]),
        "long": noisy(2.4 * window / rate),
    }


def hear(
    bundle: Bundle, folder: Path, *, threads: int | None = None, provider: str | Provider = AUTO
) -> Iterator[dict[str, Any]]:
    """Yield the lines of `speech.jsonl`, one after the other; the sounds are written to `folder`."""
    model = load(bundle.root, speculate="off", threads=threads, provider=provider, kind=Transcriber)
    sounds = make_sounds(model.speech.sample_rate, model.speech.window_samples)
    for name, samples in sounds.items():
        (folder / f"{name}.pcm").write_bytes(samples.astype("<f4").tobytes())
        for options in _options(bundle):
            segments = model.transcribe(samples, **options).segments
            yield {
                "sound": f"{name}.pcm",
                "options": options,
                "segments": [dataclasses.asdict(segment) for segment in segments],
            }


def count(bundle: Bundle) -> int:
    """Number of transcriptions that `hear` yields."""
    return len(SOUNDS) * len(_options(bundle))


def _options(bundle: Bundle) -> list[dict[str, Any]]:
    """Options with which each sound is transcribed: the reference's settings, one text without judging it, draws, texts
    that may be noise, and where the decoder takes trees, beams."""
    speech = bundle.manifest.speech
    assert speech is not None
    named = {"language": list(speech.languages)[-1]} if speech.languages else {}
    translated = {"task": "translate"} if "translate" in speech.tasks else {}
    alone = {"previous_text": False, "skip_silence": False}
    one: list[dict[str, Any]] = [
        {},
        named | translated,
        {"temperatures": [0.0], **UNJUDGED},
        {"temperatures": [0.0], **UNJUDGED, **alone, **named},
        {"temperatures": [0.6, 1.0], "seed": 3},
        {"temperatures": [0.0], **DOUBTED},
        {"temperatures": [0.0, 0.7], "compression_ratio_threshold": 1.0, "seed": 2, **DOUBTED},
    ]
    if not any(graph.trees for graph in bundle.manifest.graphs):
        return one
    return [
        *one,
        {"temperatures": [0.0], "beams": 5, **UNJUDGED},
        {"temperatures": [0.0, 0.8], "beams": 3, "seed": 5} | named,
    ]
