"""Whisper's graphs beside Torch, from samples to logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from graph_harness import TinyCheckpoint, float_matrices, relative_error, tiny_manifest
from transformers import WhisperFeatureExtractor
from whisper_files import IDS, LANGUAGES, tiny_whisper

from edge.bundle import Bundle, BundleWriter
from edge.export.graph.encoder_decoder import build_encoder_decoder
from edge.export.graph.frontend import build_frontend
from edge.manifest import Speech, Tokens
from edge.runtime.cache import KVCache
from edge.runtime.engine import BLOCKED, Engine, Tree

START, END = IDS["<|startoftranscript|>"], IDS["<|endoftext|>"]
WINDOW = 16_000  # samples: one second, 100 frames, 50 positions
VARIANTS = {
    "whisper": {},
    "128 filters": {"num_mel_bins": 128},
    "distilled": {"encoder_layers": 3, "decoder_layers": 1},
}


class Speaker:
    """A tiny model, and an engine over its written graphs."""

    def __init__(self, target: Path, **changes: int) -> None:
        self.model = tiny_whisper(**changes)
        checkpoint = TinyCheckpoint(self.model)
        writer = BundleWriter(target)
        built = build_encoder_decoder(checkpoint, float_matrices(checkpoint), writer, 60)
        frontend = build_frontend(checkpoint.config, writer)
        writer.flush()
        speech = Speech(16_000, WINDOW, START, IDS["<|notimestamps|>"], IDS["<|0.00|>"])
        own = {"encoder": built.encoder, "cross": built.cross, "speech": speech, "graphs": [*built.graphs, frontend]}
        manifest = tiny_manifest(built, "encoder-decoder", 60, Tokens(END, [END], END, False), **own)
        self.engine = Engine(Bundle(writer.staging, manifest))
        self.extractor = WhisperFeatureExtractor(feature_size=self.model.config.num_mel_bins, chunk_length=1)

    def listen(self, pcm: np.ndarray) -> KVCache:
        assert self.engine.encoder is not None
        return self.engine.new_cache(cross=self.engine.encoder.encode_audio(pcm))

    def features(self, pcm: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(self.extractor(pcm, sampling_rate=16_000, return_tensors="pt").input_features)

    def torch_logits(self, pcm: np.ndarray, ids: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            out = self.model(input_features=self.features(pcm), decoder_input_ids=torch.from_numpy(ids)[None])
        return np.asarray(out.logits[0])


@pytest.fixture(scope="module", params=VARIANTS)
def speaker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Speaker:
    return Speaker(tmp_path_factory.mktemp("speaker") / "x.edge", **VARIANTS[request.param])


def sound(samples: int = WINDOW, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    swept = np.sin(2 * np.pi * (200 + 1500 * np.arange(samples) / WINDOW) * np.arange(samples) / WINDOW)
    return (0.3 * swept + 0.05 * rng.standard_normal(samples)).astype(np.float32)


def text(length: int, seed: int = 0) -> np.ndarray:
    return np.r_[START, IDS[LANGUAGES[0]], np.random.default_rng(seed).integers(0, END, length - 2)]


@pytest.mark.parametrize("samples", [WINDOW, 5000])
@pytest.mark.parametrize("chunks", [[20], [7, 13], [1] * 20], ids=str)
def test_logits_are_torchs(speaker: Speaker, samples: int, chunks: list[int]) -> None:
    pcm, ids = sound(samples), text(20)
    cache = speaker.listen(pcm)
    steps = [speaker.engine.step(cache, ids[cache.length : cache.length + n], np.arange(n)).copy() for n in chunks]
    assert relative_error(np.concatenate(steps), speaker.torch_logits(pcm, ids)) < 1e-4


def test_greedy_answers_are_torchs(speaker: Speaker) -> None:
    for seed in range(2):
        pcm = sound(seed=seed)
        wanted = [START]
        while len(wanted) < 20:
            wanted.append(int(speaker.torch_logits(pcm, np.array(wanted))[-1].argmax()))
        cache, answer = speaker.listen(pcm), [START]
        while len(answer) < 20:
            answer.append(int(speaker.engine.step(cache, np.array(answer[-1:]))[-1].argmax()))
        assert answer == wanted


def test_the_branches_of_a_tree_are_what_each_text_is_by_itself(speaker: Speaker) -> None:
    pcm, ids = sound(), text(8)
    cache = speaker.listen(pcm)
    speaker.engine.step(cache, ids)
    bias = np.full((2, 10), BLOCKED, np.float32)
    bias[:, :8] = 0
    bias[[0, 1], [8, 9]] = 0
    logits = speaker.engine.step(cache, np.array([5, 6]), np.arange(2), tree=Tree(np.array([8, 8]), bias))
    for branch, token in enumerate((5, 6)):
        alone = speaker.torch_logits(pcm, np.r_[ids, token])[-1]
        assert relative_error(logits[branch], alone) < 1e-4


def test_another_sound_gives_other_logits(speaker: Speaker) -> None:
    logits = [speaker.engine.step(speaker.listen(sound(seed=seed)), text(3))[-1].copy() for seed in (0, 1)]
    assert relative_error(*logits) > 1e-3
