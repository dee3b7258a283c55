"""Encoder-decoder graphs beside Torch: the same logits, in one piece, in chunks, token by token, and as trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoder_decoder_configs import CONFIGS, VOCABULARY, model_of
from encoder_decoder_harness import Exported
from graph_harness import TinyCheckpoint, float_matrices, random_blocks, relative_error

from edge.errors import ExportError
from edge.export.facts.tensors import FloatTensor
from edge.export.graph.step import configuration
from edge.export.quantize.rows import rows_to_nearest
from edge.runtime.engine.tree import BLOCKED, Tree


@pytest.fixture(scope="module", params=CONFIGS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    model = model_of(request.param)
    return Exported(tmp_path_factory.mktemp("exported") / "x.edge", model, float_matrices(TinyCheckpoint(model)))


def texts(exported: Exported, source: int, target: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    start = exported.model.config.decoder_start_token_id
    return rng.integers(3, VOCABULARY, source), np.r_[start, rng.integers(3, VOCABULARY, target - 1)]


@pytest.mark.parametrize("length,chunks", [(37, [20]), (5, [7, 13]), (37, [1] * 20), (1, [3, 1, 16])], ids=str)
def test_logits_are_torchs(exported: Exported, length: int, chunks: list[int]) -> None:
    source, target = texts(exported, length, 20)
    assert relative_error(exported.logits(source, target, chunks), exported.torch_logits(source, target)) < 1e-4


def test_greedy_answers_are_torchs(exported: Exported) -> None:
    config = exported.model.config
    for seed in range(2):
        source, _ = texts(exported, 9, 2, seed)
        prompt = torch.from_numpy(source)[None]
        # Its cache takes the encoder's number of layers for the decoder's (transformers 5.23).
        forced = dict(max_length=16, min_length=16, suppress_tokens=[config.pad_token_id])
        wanted = exported.model.generate(prompt, do_sample=False, use_cache=False, **forced)
        cache, answer = exported.encode(source), [config.decoder_start_token_id]
        while len(answer) < 16:
            logits = exported.engine.step(cache, np.array(answer[-1:]))[-1].copy()
            logits[[config.eos_token_id, config.pad_token_id]] = -np.inf  # min_length forbids the end
            answer.append(int(logits.argmax()))
        assert answer == wanted[0].tolist()


def test_the_branches_of_a_tree_are_what_each_text_is_by_itself(exported: Exported) -> None:
    source, target = texts(exported, 11, 8)
    rng = np.random.default_rng(1)
    tails = rng.integers(3, VOCABULARY, (3, 4))  # three beams, four tokens each
    cache = exported.encode(source)
    exported.engine.step(cache, target)
    ancestors = [list(range(8)) for _ in tails]
    for depth in range(4):
        start = cache.length
        bias = np.full((3, start + 3), BLOCKED, np.float32)
        for beam, rows in enumerate(ancestors):
            rows.append(start + beam)
            bias[beam, rows] = 0
        tree = Tree(np.full(3, 8 + depth), bias)
        logits = exported.engine.step(cache, tails[:, depth], np.arange(3), tree=tree).copy()
    for beam, tail in enumerate(tails):
        alone = exported.torch_logits(source, np.r_[target, tail])[-1]
        assert relative_error(logits[beam], alone) < 1e-4
    # What is left of the tree when only one branch lives is that text, and plain steps go on from there.
    cache.copy_rows(ancestors[1])
    after = exported.engine.step(cache, np.array([5]))[0]
    assert relative_error(after, exported.torch_logits(source, np.r_[target, tails[1], 5])[-1]) < 1e-4


def test_a_tree_that_blocks_nothing_would_differ(exported: Exported) -> None:
    source, target = texts(exported, 11, 8)
    cache = exported.encode(source)
    exported.engine.step(cache, target)
    open_tree = Tree(np.array([8, 8]), np.zeros((2, 10), np.float32))
    logits = exported.engine.step(cache, np.array([9, 10]), np.arange(2), tree=open_tree)
    assert relative_error(logits[1], exported.torch_logits(source, np.r_[target, 10])[-1]) > 1e-3


def test_int8_encoders_do_not_let_rows_touch_each_other(tmp_path: Path) -> None:
    """One activation scale per row: a row with huge values must not coarsen its neighbours."""
    model = model_of("t5-v1.1")
    checkpoint = TinyCheckpoint(model)
    weights = dict(float_matrices(checkpoint))
    exact = {}
    for name, values in checkpoint.matrices().items():
        if name.startswith("encoder.block.0.layer.1.DenseReluDense"):
            weights[name] = rows_to_nearest(values)
            exact[name] = weights[name].dequantize()
    integer = Exported(tmp_path / "i.edge", model, weights)
    with torch.no_grad():
        for name, values in exact.items():
            model.get_parameter(name).copy_(torch.from_numpy(values))
    source, target = texts(integer, 12, 6)
    assert 1e-5 < relative_error(integer.logits(source, target, [6]), integer.torch_logits(source, target)) < 0.05


def test_an_impossible_configuration_is_refused() -> None:
    with pytest.raises(ExportError, match="does not accept"):
        configuration({"model_type": "bart", "d_model": "wide"})


def test_an_unknown_form_of_attention_is_refused(tmp_path: Path) -> None:
    model = model_of("longt5")
    model.config.encoder_attention_type = "sparse"
    with pytest.raises(ExportError, match="sets encoder_attention_type to 'sparse'; LongT5 has local and transient"):
        Exported(tmp_path / "x.edge", model, float_matrices(TinyCheckpoint(model)))


def test_embeddings_in_blocks_serve_encoder_decoder_and_head(tmp_path: Path) -> None:
    model = model_of("t5")
    weights = dict(float_matrices(TinyCheckpoint(model)))
    blocks = random_blocks(VOCABULARY, 48, 8, 16, False, like=model.shared.weight.detach().numpy())
    weights["shared.weight"] = blocks
    exported = Exported(tmp_path / "b.edge", model, weights)
    with torch.no_grad():
        model.shared.weight.copy_(torch.from_numpy(blocks.dequantize()))
    source, target = texts(exported, 12, 6)
    assert relative_error(exported.logits(source, target, [6]), exported.torch_logits(source, target)) < 0.02


def test_quantized_matrices_keep_their_biases(tmp_path: Path) -> None:
    """BART's encoder int8 by rows, its decoder in 8-bit blocks, its embeddings and head in the same blocks."""
    model = model_of("bart")
    checkpoint = TinyCheckpoint(model)
    weights: dict[str, Any] = dict(float_matrices(checkpoint))
    for name, values in checkpoint.matrices().items():
        if "encoder.layers" in name or "encoder_attn.k_proj" in name or "encoder_attn.v_proj" in name:
            weights[name] = rows_to_nearest(values)
        elif "decoder.layers" in name or "shared" in name:
            weights[name] = random_blocks(*values.shape, 8, 16, False, like=values)
    exported = Exported(tmp_path / "q.edge", model, weights)
    with torch.no_grad():
        for name, weight in weights.items():
            if not isinstance(weight, FloatTensor):
                model.get_parameter(name).copy_(torch.from_numpy(weight.dequantize()))
    source, target = texts(exported, 12, 6)
    assert 1e-5 < relative_error(exported.logits(source, target, [6]), exported.torch_logits(source, target)) < 0.03


def test_a_cache_serves_one_input_after_another(exported: Exported) -> None:
    first, target = texts(exported, 11, 6)
    second, _ = texts(exported, 7, 6, seed=3)
    cache = exported.encode(first)
    exported.engine.step(cache, target)
    assert exported.engine.encoder is not None
    inputs = {text: exported.engine.encoder.encode_text(ids) for text, ids in (("first", first), ("second", second))}
    for text, ids, rows in (("second", second, 1), ("first", first, 2), ("second", second, 2), ("first", first, 1)):
        cache.reset(inputs[text])
        logits = exported.engine.step(cache, target, np.arange(len(target) - rows, len(target)))
        assert relative_error(logits, exported.torch_logits(ids, target)[-rows:]) < 1e-4
