"""Whisper's graphs beside Torch, from samples to logits."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from graph_harness import relative_error, session_options
from whisper_files import IDS, LANGUAGES, tiny_whisper
from whisper_speaker import END, SAMPLES, START, WINDOW, Speaker

from edge.export.graph.families import whisper
from edge.export.graph.step import FLOAT, add_output, new_graph
from edge.export.quantize.encoder_decoder import is_encoders
from edge.export.quantize.rows import rows_to_nearest
from edge.export.targets.cpu.encoder_decoder import ENCODER
from edge.export.targets.cpu.lowering import CPU
from edge.export.targets.cpu.products import FINER, STEP, rounded
from edge.runtime.engine.tree import BLOCKED, Tree

VARIANTS = {
    "whisper": {},
    "128 filters": {"num_mel_bins": 128},
    "distilled": {"encoder_layers": 3, "decoder_layers": 1},
}


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


@pytest.mark.parametrize("window", [6400, 9920, 15_680], ids=str)
def test_a_short_window_is_that_of_a_model_with_as_many_positions(speaker: Speaker, window: int) -> None:
    pcm, ids = sound(5000), text(12)
    cache = speaker.listen(pcm, window)
    assert cache.cross is not None and cache.cross.length == window // SAMPLES
    logits = speaker.engine.step(cache, ids, np.arange(len(ids)))
    assert relative_error(logits, speaker.torch_logits(pcm, ids, window)) < 1e-4
    assert relative_error(logits, speaker.torch_logits(pcm, ids)) > 1e-3, "the silence after it counts"


def test_windows_of_all_lengths_share_one_windows_memory(speaker: Speaker) -> None:
    encoder = speaker.engine.encoder
    assert encoder is not None and encoder.any_length
    kept = encoder.encode_audio(sound(5000), window=6400)
    for window in (WINDOW, 9920, 6400):
        fresh = encoder.encode_audio(sound(5000), window=window)
        kept = encoder.encode_audio(sound(5000), into=kept, window=window)
        for pair, one in zip(kept.buffers, fresh.buffers, strict=True):
            assert all(map(np.array_equal, pair, one)), "an earlier sound leaves nothing behind"
        assert all(map(np.shares_memory, kept.buffers[0], (whole.array for whole in kept.whole[0])))
    full = [a.array.shape[2] for a, _ in kept.whole]
    assert full == [WINDOW // SAMPLES] * len(full), "it has room for the longest, in pages that nobody wrote yet"


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


def test_precise_rows_are_the_sum_of_two_roundings() -> None:
    builder, op = new_graph("precise", CPU)
    x = builder.input("x", FLOAT, [1, "S", 64])
    made = rounded(op, x, None, precise=True)
    assert made.largest is not None and made.rest is not None
    parts = {"values": made.values, "rest": made.rest}
    for name, value in parts.items():
        add_output(builder, value, name, [1, "S", 64], ir.DataType.UINT8)
    add_output(builder, made.largest, "largest", [1, "S", 1])
    model = ir.to_proto(ir.Model(builder.graph, ir_version=10)).SerializeToString()
    given = np.random.default_rng(0).standard_normal((1, 9, 64)).astype(np.float32)
    given[0, 3] = 0
    given[0, 5, 7] = -900
    session = ort.InferenceSession(model, session_options(), providers=["CPUExecutionProvider"])
    values, rest, largest = session.run(["values", "rest", "largest"], {"x": given})
    once = largest * STEP * (values.astype(np.float32) - 128)
    twice = once + largest * STEP * STEP / 2 * (rest.astype(np.float32) - 128)
    for found, step in ((once, STEP), (twice, STEP * STEP / 2)):
        assert (np.abs(found - given) <= 0.501 * step * largest + 1e-6).all()
    assert np.abs(twice - given).max() < np.abs(once - given).max() / 100
    assert not twice[0, 3].any(), "a row of zeros stays one"


def test_the_first_layer_and_the_decoders_keys_and_values_are_read_precisely(tmp_path: Path) -> None:
    speaker = Speaker(tmp_path / "x.edge", int8=True, encoder_layers=3, decoder_layers=2)
    graph = onnx.load(speaker.engine.bundle.path(ENCODER), load_external_data=False).graph
    finer = {tensor.name for tensor in graph.initializer if FINER in tensor.name}
    readers = {n.input[1] for n in graph.node if n.op_type == "MatMulIntegerToFloat" and finer & set(n.input)}
    all_read = {n.input[1] for n in graph.node if n.op_type == "MatMulIntegerToFloat"}
    first = {name for name in all_read if name.startswith("layers.0.")}
    cross = {name for name in all_read if name.startswith("cross.")}
    assert (len(first), len(cross)) == (6, 4) and readers == first | cross < all_read
    layers = {name.split(".")[1] for name in readers if name.startswith("layers.")}
    said = speaker.engine.bundle.manifest.graph("encoder").precise_layers
    assert layers == {str(i) for i in range(said)}, "the memory model counts as many layers"
    assert FINER.encode() in speaker.engine.bundle.path(ENCODER).read_bytes(), "it goes by this name"


def test_float_weights_have_no_use_for_it(tmp_path: Path) -> None:
    speaker = Speaker(tmp_path / "x.edge")
    assert FINER.encode() not in speaker.engine.bundle.path(ENCODER).read_bytes()


def test_outliers_of_an_encoders_first_layer_cost_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large channel coarsens its whole row in 8 bits."""
    model = tiny_whisper()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if is_encoders(name, whisper.FAMILY) and parameter.ndim == 2:  # as int8 has them: what differs is the rows
                parameter.copy_(torch.from_numpy(rows_to_nearest(parameter.numpy()).dequantize()))
        model.model.encoder.layers[0].self_attn_layer_norm.weight[3] *= 40
    pcm, ids = sound(), text(20)
    errors = []
    for name, places in (("precise", whisper.PRECISE), ("coarse", "encoder_attn")):
        monkeypatch.setattr(whisper, "FAMILY", dataclasses.replace(whisper.FAMILY, precise=places))
        speaker = Speaker(tmp_path / f"{name}.edge", model, int8=True)
        found = speaker.engine.step(speaker.listen(pcm), ids, np.arange(len(ids)))
        errors.append(relative_error(found, speaker.torch_logits(pcm, ids)))
    precise, coarse = errors
    assert 1e-6 < precise < coarse / 2, errors
