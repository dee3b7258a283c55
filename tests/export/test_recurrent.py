"""Models whose layers keep a state, from their directories to answers: each the same however it is computed."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import edge
from edge.bundle import Bundle
from edge.errors import ExportError, InputError
from edge.export.graph.families.qwen3_5 import mixer_of
from edge.runtime.engine.engine import Engine
from edge.runtime.kernels.library import find_kernels
from edge.runtime.load import open_engine

BASE = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "initializer_range": 0.3,
}
SCAN = {
    "intermediate_size": 128,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {
        "intermediate_size": 128,
        "head_dim": 64,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    },
    "qwen3_next": {
        "head_dim": 64,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 128,
        "initializer_range": 0.1,  # with 0.3 what 8 bits leave out chooses other experts, of random ones
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    },
    "lfm2": {
        "intermediate_size": 192,
        "block_multiple_of": 32,
        "layer_types": ["conv", "conv", "full_attention", "conv"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "lfm2_moe": {
        "intermediate_size": 128,
        "layer_types": ["conv", "conv", "full_attention", "conv"],
        **{"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "num_dense_layers": 1},
    },
    "granitemoehybrid": {
        **SCAN,
        "shared_intermediate_size": 128,
        "num_local_experts": 0,
        "layer_types": ["mamba", "mamba", "mamba", "attention"],
    },
    "falcon_h1": {**SCAN, "num_hidden_layers": 2, "mamba_d_ssm": 128, "mamba_rms_norm": True, "key_multiplier": 0.5},
}
PROMPTS = ["Hello there", "What is a river?", "Name three of them, and say where they end."]
TOKENS = 24


@pytest.fixture(scope="module", params=MODELS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("recurrent") / request.param
    shutil.copytree(tiny_checkpoint, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    tiny = AutoConfig.from_pretrained(tiny_checkpoint)
    tokens = {name: getattr(tiny, name) for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
    torch.manual_seed(3)
    config = AutoConfig.for_model(request.param, **{**BASE, **tokens, **MODELS[request.param]})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bundle(checkpoint: Path) -> Bundle:
    """In 8 bits, checked against Torch."""
    return edge.export(checkpoint, checkpoint.parent / f"{checkpoint.name}.edge", weights="int8", effort="quick")


def logits(engine: Engine, tokens: np.ndarray, ends: list[int]) -> np.ndarray:
    """The logits of all tokens, in steps that end there."""
    cache, made, start = engine.new_cache(), [], 0
    for end in ends:
        made.append(engine.step(cache, tokens[start:end], rows=np.arange(end - start)).copy())
        start = end
    return np.concatenate(made)


def test_some_layers_keep_states_and_others_keys(bundle: Bundle) -> None:
    manifest = bundle.manifest
    both = manifest.family == "falcon_h1"  # whose layers have attention and a scan
    assert {state.layer for state in manifest.states} == {
        i for i, each in enumerate(manifest.kv.layers) if both or not each.heads
    }
    assert manifest.states and any(layer.heads for layer in manifest.kv.layers)


def test_a_text_has_the_same_logits_however_it_is_cut(bundle: Bundle) -> None:
    engine = open_engine(bundle)
    tokens = np.random.default_rng(1).integers(3, 300, 75)
    whole = logits(engine, tokens, [75])
    for ends in ([*range(1, 76)], [7, 64, 75]):
        cut = logits(engine, tokens, ends)
        if engine.independent:
            assert np.array_equal(cut, whole)
        assert np.allclose(cut, whole, atol=1e-4 * np.abs(whole).max())


@pytest.mark.skipif(find_kernels() is None, reason="edge_kernels is not installed")
def test_with_our_kernels_rows_depend_on_nothing_else(bundle: Bundle) -> None:
    assert open_engine(bundle).independent


def test_answers_are_the_same_in_a_batch_with_drafts_and_again(bundle: Bundle) -> None:
    options = edge.GenerateOptions(max_tokens=TOKENS)
    with edge.load(bundle.root, speculate="off") as model:
        alone = [model.generate(prompt, options).token_ids for prompt in PROMPTS]
        assert [each.token_ids for each in model.generate_all(PROMPTS, max_tokens=TOKENS)] == alone
        assert [model.generate(prompt, options).token_ids for prompt in PROMPTS] == alone
    with edge.load(bundle.root, speculate="lookup") as model:
        assert [model.generate(prompt, options).token_ids for prompt in PROMPTS] == alone


def test_a_conversation_can_go_back(bundle: Bundle) -> None:
    with edge.load(bundle.root) as model:
        chat = model.chat()
        chat.generate("Hello there", max_tokens=8)
        said = chat.generate("And then?", max_tokens=8).text
        assert chat.cached_tokens > 0
        assert chat.regenerate(max_tokens=8).text == said
        chat.undo()
        assert chat.generate("And then?", max_tokens=8).text == said


@pytest.mark.parametrize("target", ["npu-qualcomm", "cuda"])
def test_other_targets_refuse_states_in_a_sentence(checkpoint: Path, tmp_path: Path, target: str) -> None:
    with pytest.raises((ExportError, InputError), match="(keep a state|has experts), which only graphs for the CPU"):
        edge.export(checkpoint, tmp_path / "x.edge", target=target)
    assert not any(tmp_path.iterdir())


def test_layers_cannot_be_skipped(bundle: Bundle) -> None:
    with pytest.raises(InputError):
        edge.load(bundle.root, skip="unified:0.5", skip_anyway=True)


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_next"])
@pytest.mark.parametrize("changes", [{"linear_num_key_heads": 0}, {"linear_num_value_heads": 10**9}])
def test_sizes_that_no_model_has_are_refused_before_anything_is_made_of_them(
    family: str, changes: dict[str, int]
) -> None:
    given = SimpleNamespace(**{**BASE, **MODELS["qwen3_next"], **changes}, linear_conv_kernel_dim=4, rms_norm_eps=1e-6)
    with pytest.raises(ExportError, match="in linear attention, and .* which no model has"):
        mixer_of(given, fused=family == "qwen3_next")
