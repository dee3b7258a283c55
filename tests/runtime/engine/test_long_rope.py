"""LongRoPE: a text has the short factors up to the original context and the long ones beyond it, as in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoder_configs import BASE, LONG, PREFILL, VOCABULARY, rope
from graph_harness import TinyCheckpoint, float_matrices, tiny_manifest, tiny_model, torch_logits
from transformers import AutoConfig

from edge.bundle import Bundle, BundleWriter
from edge.export.reference.in_numpy import Reference
from edge.export.targets.cpu.decoder import build_decoder
from edge.manifest import Tokens
from edge.runtime.decode.loop import generate
from edge.runtime.decode.sampling import greedy
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.variant import Variant

ORIGINAL, CONTEXT = 12, 48
CONFIG: dict[str, Any] = {name: value for name, value in (BASE | PREFILL).items() if value is not None} | {
    "model_type": "phi3",
    "original_max_position_embeddings": ORIGINAL,
    "rope_parameters": rope("longrope", original_max_position_embeddings=ORIGINAL, **LONG),
}


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model(AutoConfig.for_model(**CONFIG))


@pytest.fixture(scope="module")
def bundle(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    checkpoint = TinyCheckpoint(model, CONFIG)
    with BundleWriter(tmp_path_factory.mktemp("long") / "tiny.edge") as writer:
        built = build_decoder(checkpoint, float_matrices(checkpoint), writer, CONTEXT)  # type: ignore[arg-type]
        writer.write_file("tokenizer.json", "{}")
        writer.write_file("golden.json", "{}")
        short = built.short_rope
        manifest = tiny_manifest(built, "decoder", CONTEXT, Tokens(1, [2], None, False), short_rope=short)
        return writer.commit(manifest)


def ids_of(size: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, VOCABULARY, size)


def engine_of(bundle: Bundle, context: int = CONTEXT, exact: bool = False) -> Engine:
    return Engine(bundle, Variant(context=context, exact=exact))


@pytest.mark.parametrize("size", [1, 5, ORIGINAL - 1, ORIGINAL, ORIGINAL + 1, 20, CONTEXT])
@pytest.mark.parametrize("exact", [False, True])
def test_a_prompt_of_any_length_has_the_factors_of_its_length(
    bundle: Bundle, model: Any, size: int, exact: bool
) -> None:
    engine, ids = engine_of(bundle, exact=exact), ids_of(size)
    logits = engine.step(engine.new_cache(), ids, np.arange(size))
    np.testing.assert_allclose(logits, torch_logits(model, ids), atol=2e-4)


@pytest.mark.parametrize("steps", [[1] * 20, [5, 1, 1, 9, 1, 1], [12, 1, 7], [11, 2, 2], [16, 1]])
@pytest.mark.parametrize("exact", [False, True])
def test_a_text_that_grows_across_is_run_again_by_the_long_factors(
    bundle: Bundle, model: Any, steps: list[int], exact: bool
) -> None:
    engine, ids = engine_of(bundle, exact=exact), ids_of(sum(steps))
    cache, end = engine.new_cache(), 0
    for size in steps:
        logits = engine.step(cache, ids[end : end + size])
        end += size
        assert cache.length == end
        np.testing.assert_allclose(logits[-1], torch_logits(model, ids[:end])[-1], atol=2e-4)


def test_a_text_that_is_cut_back_has_the_short_factors_again(bundle: Bundle, model: Any) -> None:
    engine, ids, other = engine_of(bundle), ids_of(20), ids_of(3, seed=2)
    cache = engine.new_cache()
    engine.step(cache, ids)
    cache.truncate(6)
    logits = engine.step(cache, other)
    np.testing.assert_allclose(logits[-1], torch_logits(model, np.append(ids[:6], other))[-1], atol=2e-4)


def test_a_prompt_in_chunks_is_read_once_by_the_factors_of_its_whole(
    bundle: Bundle, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, ids = engine_of(bundle), ids_of(30)
    ran: list[int] = []
    plain = engine._placed
    monkeypatch.setattr(engine, "_placed", lambda cache, t, *more: ran.append(len(t)) or plain(cache, t, *more))
    tokens = generate(engine, engine.new_cache(), ids, greedy, chunk=4, interrupted=lambda: False)
    assert next(tokens) == torch_logits(model, ids)[-1].argmax()
    assert ran == [4] * 7 + [2]


@pytest.mark.parametrize("prompt", [3, 10, 11, 12, 14])
def test_greedy_answers_are_those_of_transformers(bundle: Bundle, model: Any, prompt: int) -> None:
    ids, engine = ids_of(prompt), engine_of(bundle)
    tokens = generate(engine, engine.new_cache(), ids, greedy, chunk=128, interrupted=lambda: False)
    found = [int(token) for token, _ in zip(tokens, range(16), strict=False)]
    text = torch.from_numpy(ids)[None]
    with torch.no_grad():
        for token in found:
            logits = model(text, use_cache=False).logits[0, -1]
            assert logits[token] >= logits.max() - 2e-4
            text = torch.cat([text, torch.tensor([[token]])], 1)


def test_a_context_that_is_not_beyond_the_original_has_the_short_factors_alone(bundle: Bundle, model: Any) -> None:
    engine, ids = engine_of(bundle, context=ORIGINAL), ids_of(ORIGINAL)
    logits = engine.step(engine.new_cache(), ids, np.arange(ORIGINAL))
    np.testing.assert_allclose(logits, torch_logits(model, ids), atol=2e-4)


def test_drafts_end_where_the_factors_change(bundle: Bundle) -> None:
    engine = engine_of(bundle, exact=True)
    cache = engine.new_cache()
    engine.step(cache, ids_of(9))
    assert engine.max_exact_step(cache) == ORIGINAL - 9
    engine.step(cache, ids_of(5))
    assert engine.max_exact_step(cache) == CONTEXT - 1 - 14
    assert not engine.takes_trees and not engine.supports_batching


@pytest.mark.parametrize("size", [5, ORIGINAL, ORIGINAL + 1, 30])
def test_the_reference_in_numpy_has_them_too(model: Any, size: int) -> None:
    ids = ids_of(size)
    pieces = Reference(TinyCheckpoint(model, CONFIG), CONTEXT).logits(ids)  # type: ignore[arg-type]
    np.testing.assert_allclose(np.concatenate(list(pieces)), torch_logits(model, ids), atol=2e-4)


def test_the_bundle_says_up_to_where(bundle: Bundle, tmp_path: Path) -> None:
    assert bundle.manifest.short_rope == ORIGINAL
