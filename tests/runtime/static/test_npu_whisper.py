"""Whisper base on Qualcomm's simulator: a window of speech and 24 tokens, next to the CPU over the same integers."""

from __future__ import annotations

import numpy as np
import pytest
from npu_models import NAME, agreement, divergence, needs_simulator, plain, static
from numpy.typing import NDArray

import edge
from edge import catalog
from edge.bundle import Bundle
from edge.export.quantize import voice
from edge.runtime.engine.engine import Engine
from edge.targets import read_target

WHISPER = catalog.local(catalog.resolve("whisper-base"))  # in the user's cache, before tests get their own
PHONEMES = voice.passages()[0][0]  # half a minute of sentences
SPEAKER = voice.Speaker(150, 1.0, 1.05)  # whom the ranges were not measured on
STEPS = 24
pytestmark = [
    pytest.mark.slow,  # eight minutes, most of them the encoder on the simulator
    pytest.mark.skipif(WHISPER is None, reason="Whisper base is not in the cache"),
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    made = edge.export(str(WHISPER), tmp_path_factory.mktemp("whisper") / "base.edge", weights="fp32", target=NAME)
    quality = read_target(made, NAME).quality
    print(quality)
    assert quality["kl_mean"] < 0.01
    return made


@pytest.fixture(scope="module")
def sound() -> NDArray[np.float32]:
    return voice.read(PHONEMES, SPEAKER)


def heard(
    bundle: Bundle, engine: Engine, sound: NDArray[np.float32], answer: list[int], steps: int
) -> NDArray[np.float32]:
    """The logits [steps + 1, V] after the start, and after each token of `answer`, which is added to where it is too
    short."""
    speech = bundle.manifest.speech
    assert engine.encoder is not None and speech is not None and speech.no_timestamps is not None
    start = [speech.start, speech.languages["en"], speech.tasks["transcribe"], speech.no_timestamps]
    cache = engine.new_cache(cross=engine.encoder.encode_audio(sound))
    made = [engine.step(cache, np.array(start, np.int64))[0].copy()]
    for i in range(steps):
        if i == len(answer):
            answer.append(int(made[-1].argmax()))
        made.append(engine.step(cache, np.array(answer[i : i + 1], np.int64))[0].copy())
    return np.array(made)


def test_it_hears_what_float32_hears(bundle: Bundle, sound: NDArray[np.float32]) -> None:
    answer: list[int] = []
    theirs = heard(bundle, plain(bundle), sound, answer, 32)
    ours = heard(bundle, static(bundle), sound, answer, 32)
    print(f"CPU: KL {divergence(ours, theirs):.1e} from float32, same likeliest token {agreement(ours, theirs):.1%}")
    assert divergence(ours, theirs) < 0.02 and agreement(ours, theirs) >= 0.9


def test_the_simulator_hears_it_too(bundle: Bundle, sound: NDArray[np.float32]) -> None:
    needs_simulator()
    answer: list[int] = []
    theirs = heard(bundle, static(bundle), sound, answer, STEPS)
    engine = static(bundle, "qnn")
    for session in engine.sessions.values():
        assert set(engine.provider.placement(session)) == {"QNNExecutionProvider"}
    ours = heard(bundle, engine, sound, answer, STEPS)
    kl, same = divergence(ours, theirs), agreement(ours, theirs)
    print(f"simulator: KL {kl:.1e} from the CPU, same likeliest token {same:.1%} of {len(ours)}")
    assert kl < 0.005 and same >= 0.98
