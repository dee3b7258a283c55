"""Graphs for NPUs say what the model says, of every family that they are written for, in steps of any size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from decoder_configs import VOCABULARY
from encoder_decoder_configs import model_of
from graph_harness import TinyCheckpoint
from npu_models import (
    CONTEXT,
    FAMILIES,
    NAME,
    agreement,
    bundle_of,
    checkpoint_of,
    divergence,
    encoder_decoder_of,
    needs_simulator,
    plain,
    speaker_of,
    static,
    walk,
)
from numpy.typing import NDArray
from whisper_files import tiny_whisper
from whisper_speaker import WINDOW

from edge.bundle import Bundle
from edge.errors import ExportError, InputError
from edge.export.targets.kind import Wanted, check_wanted
from edge.golden import noise
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.tree import BLOCKED, Tree

SIZES = [16, 8, 3, *[1] * 5, 8, 8, 8, 1, 1, 6]
TEXTS = np.random.default_rng(3).integers(3, VOCABULARY, (3, CONTEXT))
TOKENS = TEXTS[0]
PAIRS = ["t5", "t5-v1.1", "bart", "marian-apart", "m2m_100", "pegasus"]


@pytest.fixture(scope="module", params=FAMILIES)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bundle]:
    yield bundle_of(checkpoint_of(request.param), tmp_path_factory.mktemp(request.param))


def test_integers_stay_close_to_the_float_graph(bundle: Bundle) -> None:
    ours, theirs = (walk(engine, TOKENS, SIZES) for engine in (static(bundle), plain(bundle)))
    assert divergence(ours, theirs) < 0.015
    assert agreement(ours, theirs) > 0.75  # an untrained model's best tokens are nearly equal


def test_the_simulator_says_what_the_cpu_says_of_the_same_integers(bundle: Bundle) -> None:
    """Strict: every node runs on it."""
    needs_simulator()
    engine = static(bundle, "qnn")
    for session in engine.sessions.values():
        assert set(engine.provider.placement(session)) == {"QNNExecutionProvider"}
    cpu = static(bundle)
    ours, theirs = (np.concatenate([walk(each, text, SIZES) for text in TEXTS]) for each in (engine, cpu))
    kl, same = divergence(ours, theirs), agreement(ours, theirs)
    print(f"{bundle.manifest.family}: KL {kl:.1e}, same likeliest token {same:.1%} of {len(ours)}")
    assert kl < 0.0001 and same >= 0.98


def test_how_a_text_is_cut_into_steps_makes_no_difference(bundle: Bundle) -> None:
    engine = static(bundle)
    whole = walk(engine, TOKENS, [8] * 6)
    for sizes in ([1] * 48, [3] * 16, [48]):
        made = walk(engine, TOKENS, sizes)
        np.testing.assert_allclose(made, whole[-len(made) :], atol=0.01)


def test_a_tree_sees_its_own_branch(bundle: Bundle) -> None:
    engine = static(bundle)
    straight, forked = engine.new_cache(CONTEXT), engine.new_cache(CONTEXT)
    for cache in (straight, forked):
        engine.step(cache, TOKENS[:20])
    wanted = engine.step(straight, TOKENS[20:22], np.arange(2)).copy()
    bias = np.zeros((4, 24), np.float32)
    bias[:, 20:] = np.where(np.eye(4, dtype=bool), 0, BLOCKED)
    bias[3, 21] = 0  # the last token follows the second one
    tree = Tree(np.array([20, 20, 20, 21]), bias)
    tokens = np.array([TOKENS[30], TOKENS[20], TOKENS[31], TOKENS[21]])
    made = engine.step(forked, tokens, np.array([1, 3]), tree=tree)
    np.testing.assert_allclose(made, wanted, atol=0.01)
    forked.copy_rows(np.array([*range(20), 21, 23]))
    after = [engine.step(cache, TOKENS[22:23]).copy() for cache in (straight, forked)]
    np.testing.assert_allclose(after[1], after[0], atol=0.01)


def test_a_cache_that_is_cut_short_forgets(bundle: Bundle) -> None:
    engine = static(bundle)
    cache = engine.new_cache(CONTEXT)
    before = engine.step(cache, TOKENS[:9]).copy()
    engine.step(cache, TOKENS[20:40])
    cache.truncate(8)
    np.testing.assert_allclose(engine.step(cache, TOKENS[8:9]), before, atol=0.01)


@pytest.fixture(scope="module", params=[*PAIRS, "whisper"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp(request.param)
    return speaker_of(folder) if request.param == "whisper" else encoder_decoder_of(request.param, folder)


def said(bundle: Bundle, engine: Engine) -> NDArray[np.float32]:
    """What an encoder-decoder says after two texts or sounds, of which one fills the encoder."""
    sizes, sources = [2, *SIZES[1:], 8], (TEXTS[1][:37], TEXTS[2])
    if bundle.manifest.speech is not None:
        sources = noise(20, WINDOW // 2), noise(21, WINDOW)
    return np.concatenate([walk(engine, TOKENS, sizes, source) for source in sources])


def test_an_encoder_decoder_stays_close_to_its_float_graphs(pair: Bundle) -> None:
    ours, theirs = said(pair, static(pair)), said(pair, plain(pair))
    # T5 1.1's random weights make logits of +-20, and T5's of +-0.5; differences grow with them.
    assert divergence(ours, theirs) < max(0.0005, 0.006 * theirs.std() ** 2)
    assert agreement(ours, theirs) > 0.75


def test_the_simulator_runs_an_encoder_decoder_whole(pair: Bundle) -> None:
    needs_simulator()
    engine = static(pair, "qnn")
    assert len(engine.sessions) == 3
    for session in engine.sessions.values():
        assert set(engine.provider.placement(session)) == {"QNNExecutionProvider"}
    ours, theirs = said(pair, engine), said(pair, static(pair))
    kl, same = divergence(ours, theirs), agreement(ours, theirs)
    print(f"{pair.manifest.family}: KL {kl:.1e}, same likeliest token {same:.1%} of {len(ours)}")
    assert kl < 0.001 and same >= 0.98


def test_several_contexts_are_for_decoders() -> None:
    asked = TinyCheckpoint(model_of("t5"), name="t5")
    with pytest.raises(InputError, match="t5 is an encoder-decoder, whose graphs have one --target-context; name one"):
        check_wanted(Wanted(NAME, [CONTEXT, 2 * CONTEXT]), asked, 512)


def test_norms_after_a_rotation_are_refused_at_once() -> None:
    with pytest.raises(ExportError, match="rotates positions outside of its attention, which no graph for NPUs does"):
        check_wanted(Wanted(NAME), checkpoint_of("hunyuan_v1_dense"), CONTEXT)


@pytest.mark.parametrize("kind", ["umt5", "longt5", "t5gemma", "t5gemma2", "gemma3n_text", "gemma4_text"])
def test_what_no_graph_does_yet_is_refused_at_once(kind: str) -> None:
    asked = SimpleNamespace(config={"model_type": kind}, name=kind, names=list)
    with pytest.raises(ExportError, match=f"{kind} .*, which no graph for NPUs does yet; leave out --target"):
        check_wanted(Wanted(NAME), asked, CONTEXT)  # type: ignore[arg-type]


def test_a_mask_is_deeper_than_scores_are_wide(tmp_path: Path) -> None:
    """T5 does not scale its scores, and -100 would not hide what has a score of 250 more."""
    checkpoint = checkpoint_of("llama")
    for layer in checkpoint.model.model.layers:
        layer.self_attn.q_proj.weight.data *= 30
    bundle = bundle_of(checkpoint, tmp_path)
    engine = static(bundle)
    assert engine.target.masked < -150
    one, eight = (walk(engine, TOKENS, sizes) for sizes in ([1] * 48, [8] * 6))
    assert divergence(one, eight) < 0.01


@pytest.mark.parametrize(
    ("family", "config", "expected"),
    [
        ("mistral", {"sliding_window": 7}, "attends to the last 7 tokens alone, .*; choose a --target-context of 7 or"),
        ("gemma2", {"sliding_window": CONTEXT}, "bounds its attention scores"),
        ("gemma3_text", {"sliding_window": CONTEXT - 1}, f"attends to the last {CONTEXT - 1} tokens alone"),
    ],
)
def test_what_no_graph_can_do_is_refused_before_weights_are_read(
    family: str, config: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = checkpoint_of(family, **config)
    monkeypatch.setattr(checkpoint, "read", lambda *_: pytest.fail("a weight was read"))
    with pytest.raises(ExportError, match=expected):
        check_wanted(Wanted(NAME, CONTEXT), checkpoint, CONTEXT)


@pytest.mark.parametrize("name", [*FAMILIES, *PAIRS, "whisper"])
def test_what_can_be_made_passes(name: str) -> None:
    if name in FAMILIES:
        checkpoint = checkpoint_of(name)
    else:
        model = tiny_whisper(max_target_positions=CONTEXT) if name == "whisper" else model_of(name)
        checkpoint = TinyCheckpoint(model, name=name)
    check_wanted(Wanted(NAME, CONTEXT), checkpoint, CONTEXT)
