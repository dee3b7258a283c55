"""Graphs for CUDA say what the model says, of every family that they are written for, over a GPU of paper."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from decoder_configs import VOCABULARY
from encoder_decoder_configs import model_of
from fake_cuda import FakeCuda
from graph_harness import TinyCheckpoint, float_matrices
from npu_models import (
    CONTEXT,
    FAMILIES,
    agreement,
    bundle_of,
    checkpoint_of,
    divergence,
    encoder_decoder_of,
    plain,
    speaker_of,
    walk,
)
from numpy.typing import NDArray
from whisper_speaker import WINDOW

from edge.bundle import Bundle
from edge.errors import ExportError, InputError
from edge.export.facts.tensors import LazyWeights, Weight, matrices
from edge.export.quantize.rtn import round_to_nearest
from edge.export.targets.cuda import CHECKED
from edge.export.targets.cuda.weights import BLOCK
from edge.export.targets.kind import Wanted, check_wanted
from edge.golden import noise
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.tree import BLOCKED, Tree
from edge.runtime.engine.variant import Variant
from edge.runtime.providers.cpu import session_options
from edge.targets import CUDA

SIZES = [16, 8, 3, *[1] * 5, 8, 8, 8, 1, 1, 6]
TEXTS = np.random.default_rng(3).integers(3, VOCABULARY, (3, CONTEXT))
TOKENS = TEXTS[0]
PAIRS = ["t5", "t5-v1.1", "bart", "marian-apart", "m2m_100", "pegasus"]
WINDOWED = {
    **{"mistral": {"sliding_window": 7}, "gemma3_text": {"sliding_window": 20}, "olmo3": {"sliding_window": 9}},
    **{"exaone4": {"sliding_window": 9}, "cohere2": {"sliding_window": 9}, "starcoder2": {"sliding_window": 20}},
}  # which NPUs cannot have
FLOATS, INTEGERS = Wanted(CUDA, weights="float16"), Wanted(CUDA, weights="int8")
WIDE = Wanted(CUDA, weights="float16", activations="bfloat16")


@pytest.fixture(autouse=True)
def rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers by rounding alone: tiny models have no text to calibrate on."""

    def weights(checkpoint: Any, kind: str, options: object) -> Mapping[str, Weight]:
        if kind == "float16":
            return float_matrices(checkpoint)
        return LazyWeights(matrices(checkpoint), lambda name: round_to_nearest(checkpoint.read(name), 8, BLOCK))

    monkeypatch.setattr("edge.export.targets.cuda.cuda_weights", weights)


def device(bundle: Bundle) -> Engine:
    return Engine(bundle, Variant(target=CUDA), FakeCuda())


@pytest.fixture(scope="module", params=[*FAMILIES, "hunyuan_v1_dense"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    family = request.param
    return bundle_of(checkpoint_of(family, **WINDOWED.get(family, {})), tmp_path_factory.mktemp(family), wanted=FLOATS)


def test_float16_is_close_to_the_float_graph(bundle: Bundle) -> None:
    ours, theirs = (walk(engine, TOKENS, SIZES) for engine in (device(bundle), plain(bundle)))
    assert divergence(ours, theirs) < 1e-4
    assert agreement(ours, theirs) > 0.9  # an untrained model's best tokens are nearly equal


def test_how_a_text_is_cut_into_steps_makes_no_difference(bundle: Bundle) -> None:
    engine = device(bundle)
    whole = walk(engine, TOKENS, [8] * 6)
    for sizes in ([1] * 48, [3] * 16, [48]):
        made = walk(engine, TOKENS, sizes)
        np.testing.assert_allclose(made, whole[-len(made) :], atol=0.02)


def test_a_step_can_give_tokens_or_candidates(bundle: Bundle) -> None:
    engine = device(bundle)
    caches = [engine.new_cache(CONTEXT) for _ in range(3)]
    for cache in caches:
        engine.step(cache, TOKENS[:20])
    rows = np.arange(4)
    logits = engine.step(caches[0], TOKENS[20:24], rows).copy()
    np.testing.assert_array_equal(engine.step(caches[1], TOKENS[20:24], rows, want="tokens"), logits.argmax(axis=1))
    for row, found in zip(logits, engine.step(caches[2], TOKENS[20:24], rows, want="candidates"), strict=True):
        np.testing.assert_array_equal(found.logits, np.sort(row)[::-1][: len(found.logits)])
        np.testing.assert_array_equal(row[found.tokens], found.logits)
        np.testing.assert_array_equal(found.whole(), row)


@pytest.mark.parametrize(("wanted", "most"), [(INTEGERS, 2e-3), (WIDE, 1e-3)])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_other_weights_and_types(family: str, wanted: Wanted, most: float, tmp_path: Path) -> None:
    bundle = bundle_of(checkpoint_of(family), tmp_path, wanted=wanted)
    ours, theirs = (walk(engine, TOKENS, SIZES) for engine in (device(bundle), plain(bundle)))
    assert divergence(ours, theirs) < most


@pytest.fixture(scope="module", params=[*PAIRS, "whisper"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp(request.param)
    return (
        speaker_of(folder, FLOATS) if request.param == "whisper" else encoder_decoder_of(request.param, folder, FLOATS)
    )


def said(bundle: Bundle, engine: Engine) -> NDArray[np.float32]:
    """What an encoder-decoder says after two texts or sounds, of which one fills the encoder."""
    sizes, sources = [2, *SIZES[1:], 8], (TEXTS[1][:37], TEXTS[2])
    if bundle.manifest.speech is not None:
        sources = noise(20, WINDOW // 2), noise(21, WINDOW)
    return np.concatenate([walk(engine, TOKENS, sizes, source) for source in sources])


def test_an_encoder_decoder_is_close_to_its_float_graphs(pair: Bundle) -> None:
    ours, theirs = said(pair, device(pair)), said(pair, plain(pair))
    assert divergence(ours, theirs) < max(1e-5, 1e-4 * theirs.std() ** 2)
    assert agreement(ours, theirs) > 0.9


def test_branches_of_an_encoder_decoder_do_not_see_each_other(pair: Bundle) -> None:
    engine = device(pair)
    assert engine.encoder is not None
    if pair.manifest.speech is None:
        heard = engine.encoder.encode_text(TEXTS[1][:37])
    else:
        heard = engine.encoder.encode_audio(noise(20, WINDOW))
    straight, forked = (engine.new_cache(CONTEXT, heard) for _ in range(2))
    for cache in (straight, forked):
        engine.step(cache, TOKENS[:20])
    wanted = engine.step(straight, TOKENS[20:22], np.arange(2)).copy()
    bias = np.zeros((4, 24), np.float32)
    bias[:, 20:] = np.where(np.eye(4, dtype=bool), 0, BLOCKED)
    bias[3, 21] = 0  # the last token follows the second one
    tree = Tree(np.array([20, 20, 20, 21]), bias)
    tokens = np.array([TOKENS[30], TOKENS[20], TOKENS[31], TOKENS[21]])
    made = engine.step(forked, tokens, np.array([1, 3]), tree=tree)
    np.testing.assert_allclose(made, wanted, atol=0.03)
    forked.copy_rows(np.array([*range(20), 21, 23]))
    after = [engine.step(cache, TOKENS[22:23], tree=whole(cache.length)).copy() for cache in (straight, forked)]
    np.testing.assert_allclose(after[1], after[0], atol=0.03)


def whole(length: int) -> Tree:
    """A token after `length` others, all of which it sees."""
    return Tree(np.array([length]), np.zeros((1, length + 1), np.float32))


def types_of(path: Path) -> dict[str, list[onnx.NodeProto]]:
    found: dict[str, list[onnx.NodeProto]] = {}
    for node in onnx.load(path, load_external_data=False).graph.node:
        found.setdefault(node.op_type, []).append(node)
    return found


def test_the_graph_for_the_device_has_its_own_operators(tmp_path: Path) -> None:
    """Norms inside attention, packed inputs, no positions, no bias in products of integers, nothing computed of
    shapes."""
    bundle = bundle_of(checkpoint_of("qwen3"), tmp_path, wanted=INTEGERS)
    folder = bundle.path(f"targets/{CUDA}")
    ours, checked = types_of(folder / "decoder.onnx"), types_of(folder / f"{CHECKED}decoder.onnx")
    for node in ours["GroupQueryAttention"]:
        assert node.input[0] and not node.input[1] and not node.input[2], "query, key and value are packed"
        assert not node.input[9] and not node.input[10], "it counts positions itself, and adds nothing"
        assert node.input[14] and node.input[15], "it norms queries and keys"
    assert len(ours["SimplifiedLayerNormalization"]) < len(checked["SimplifiedLayerNormalization"])
    assert all(len(node.input) == 3 for node in ours["MatMulNBits"])
    assert not {"Shape", "If", "Loop", "Range"} & ours.keys()
    inputs = {value.name for value in onnx.load(folder / "decoder.onnx", load_external_data=False).graph.input}
    assert "position_ids" not in inputs


@pytest.mark.parametrize("wanted", [FLOATS, INTEGERS, WIDE])
def test_shapes_and_types_are_inferred_throughout(wanted: Wanted, tmp_path: Path) -> None:
    """onnxruntime infers all types when it reads a graph, before it looks for kernels, of which a CPU has none for
    bfloat16: a refusal names a kernel then, and no type."""
    path = bundle_of(checkpoint_of("llama"), tmp_path, wanted=wanted).path(f"targets/{CUDA}/decoder.onnx")
    options = session_options(path.parent)
    if wanted is not WIDE:
        assert ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).get_outputs()
        return
    with pytest.raises(Exception, match="NOT_IMPLEMENTED.* Could not find an implementation for") as refused:
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    assert "Type" not in str(refused.value)


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (Wanted(CUDA, weights="int3"), "no target weights 'int3' for cuda; choose int4, int8 or float16"),
        (Wanted(CUDA, activations="float8"), "no activations in 'float8'; choose float16 or bfloat16"),
        (Wanted(CUDA, context=512), "take the bundle's whole context; leave out --target-context"),
        (Wanted(CUDA, socs=["sm8650"]), "compiled for none; leave out --soc"),
        (Wanted("tpu"), "There is no target 'tpu'; choose one of npu-qualcomm, cuda"),
    ],
)
def test_what_cannot_be_asked_for_is_a_sentence(wanted: Wanted, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        check_wanted(wanted, checkpoint_of("llama"), CONTEXT)


def test_integers_are_for_decoders() -> None:
    with pytest.raises(InputError, match="t5 is an encoder-decoder, whose --target-weights for cuda are float16"):
        check_wanted(INTEGERS, TinyCheckpoint(model_of("t5"), name="t5"), CONTEXT)


@pytest.mark.parametrize("kind", ["umt5", "longt5", "t5gemma", "t5gemma2", "gemma3n_text", "gemma4_text"])
def test_what_no_graph_does_yet_is_refused_at_once(kind: str) -> None:
    asked = SimpleNamespace(config={"model_type": kind}, name=kind, names=list)
    with pytest.raises(ExportError, match=f"{kind} .*, which no graph for CUDA does yet; leave out --target"):
        check_wanted(FLOATS, asked, CONTEXT)  # type: ignore[arg-type]


def test_a_weight_that_float16_cannot_hold_is_refused(tmp_path: Path) -> None:
    checkpoint: Any = checkpoint_of("llama")
    checkpoint.model.model.layers[0].mlp.up_proj.weight.data[0, 0] = 1e5
    with pytest.raises(ExportError, match="holds 1e\\+05, which float16 cannot; choose --target-activations bfloat16"):
        bundle_of(checkpoint, tmp_path, wanted=FLOATS)
