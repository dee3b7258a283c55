"""The frontend graph makes the features of transformers' extractor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from graph_harness import session_options
from transformers import WhisperFeatureExtractor

from edge.bundle import BundleWriter
from edge.errors import ExportError
from edge.export.targets.cpu.frontend import build_frontend

SECONDS = np.arange(30 * 16_000) / 16_000
NOISE = np.random.default_rng(0).standard_normal(len(SECONDS))
SIGNALS = {
    "noise": 0.1 * NOISE,
    "silence": np.zeros_like(SECONDS),
    "chirp": 0.5 * np.sin(2 * np.pi * (50 + 130 * SECONDS) * SECONDS),
    "clipped": np.clip(3 * np.sin(2 * np.pi * 180 * SECONDS) + NOISE, -1, 1),
    "quiet": 1e-4 * NOISE,
    "one second, then silence": np.where(SECONDS < 1, 0.3 * NOISE, 0),
    "a click at either end": np.isin(SECONDS, SECONDS[[0, -1]]).astype(np.float64),
}


def frontend(target: Path, bins: int) -> ort.InferenceSession:
    writer = BundleWriter(target)
    graph = build_frontend({"num_mel_bins": bins}, writer)
    writer.flush()
    options = session_options()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(writer.staging))
    return ort.InferenceSession(str(writer.staging / graph.path), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("bins", [80, 128])
def test_features_equal_the_reference_extractors(tmp_path: Path, bins: int) -> None:
    session = frontend(tmp_path / "speech.edge", bins)
    reference = WhisperFeatureExtractor(feature_size=bins)
    for name, signal in SIGNALS.items():
        pcm = signal.astype(np.float32)
        expected = reference(pcm, sampling_rate=16_000, return_tensors="np").input_features
        features = session.run(["input_features"], {"pcm": pcm[None]})[0]
        assert features.shape == expected.shape == (1, bins, 3000)
        assert np.abs(features - expected).max() < 1e-4, name


def test_shorter_windows_have_fewer_frames(tmp_path: Path) -> None:
    pcm = SIGNALS["noise"][: 16_000 * 2].astype(np.float32)
    features = frontend(tmp_path / "speech.edge", 80).run(None, {"pcm": pcm[None]})[0]
    expected = WhisperFeatureExtractor(chunk_length=2)(pcm, sampling_rate=16_000, return_tensors="np").input_features
    assert features.shape == expected.shape == (1, 80, 200)
    assert np.abs(features - expected).max() < 1e-4


def test_a_number_of_filters_that_cannot_be_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="num_mel_bins is 0; features are made in 1 to 200 mel filters"):
        build_frontend({"num_mel_bins": 0}, BundleWriter(tmp_path / "speech.edge"))
