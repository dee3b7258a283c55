"""A decoder that is read from its checkpoint layer by layer computes what the whole one computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from decoder_configs import BASE, rope
from graph_harness import TinyCheckpoint, tiny_model
from transformers import AutoConfig

from edge.errors import CheckpointError
from edge.export.graph.families import parameter_names
from edge.export.quantize.calibration_set import TextSet
from edge.export.reference.in_torch import TorchLogits, load_torch
from edge.export.reference.streamed import StreamedLogits, StreamedModel

MIXED = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
SHARING = {  # whose last layers read others' keys and values, and all layers a table of tokens
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 40,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 97,
}
SCAN = {
    "mamba_n_heads": 4,
    "mamba_d_head": 24,
    "mamba_d_state": 16,
    "num_local_experts": 0,
    "shared_intermediate_size": 80,
    "head_dim": None,
}
DELTA_EXPERTS = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16},
    **{"num_experts": 4, "num_experts_per_tok": 2},
    **{"moe_intermediate_size": 24, "shared_expert_intermediate_size": 40},
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
MODELS: dict[str, dict[str, Any]] = {
    "llama, tied": {"model_type": "llama", "tie_word_embeddings": True},
    "llama, untied, biases": {"model_type": "llama", "tie_word_embeddings": False, "attention_bias": True},
    "llama, dynamic rope": {"model_type": "llama", "rope_parameters": rope("dynamic", factor=2.0)},
    "mistral, window": {"model_type": "mistral", "sliding_window": 20},
    "qwen3, windows": {"model_type": "qwen3", **MIXED, "use_sliding_window": True, "sliding_window": 30},
    "gemma2": {"model_type": "gemma2", "sliding_window": 70, "attn_logit_softcapping": 2.0},
    "gemma3n": {"model_type": "gemma3n_text", **SHARING, "laurel_rank": 16},
    "gemma4": {"model_type": "gemma4_text", **SHARING, "global_head_dim": 32},
    "gemma3, windows": {"model_type": "gemma3_text", **MIXED, "sliding_window": 70, "final_logit_softcapping": 2.0},
    "phi3": {"model_type": "phi3"},
    "granite": {"model_type": "granite", "logits_scaling": 3.0, "residual_multiplier": 0.4},
    "olmo2": {"model_type": "olmo2"},
    "olmoe": {"model_type": "olmoe", "num_experts": 4, "num_experts_per_tok": 2},
    "qwen3moe, a dense layer": {
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "mlp_only_layers": [1],
    },
    "granite, shared expert": {
        "model_type": "granitemoeshared",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 40,
    },
    "gpt-oss": {"model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 20},
    "smollm3": {"model_type": "smollm3"},
    "ministral3": {"model_type": "ministral3"},
    "olmo3, windows": {"model_type": "olmo3", **MIXED, "sliding_window": 30},
    "exaone4, windows": {"model_type": "exaone4", **MIXED, "sliding_window": 30},
    "ernie4_5": {"model_type": "ernie4_5"},
    "hunyuan": {"model_type": "hunyuan_v1_dense"},
    "cohere2, windows": {"model_type": "cohere2", **MIXED, "sliding_window": 30},
    "starcoder2": {"model_type": "starcoder2", "sliding_window": 30},
    "stablelm, parallel": {"model_type": "stablelm", "use_parallel_residual": True},
    "bitnet": {"model_type": "bitnet"},
    "qwen3.5": {
        "model_type": "qwen3_5_text",
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "qwen3-next": {"model_type": "qwen3_next", **DELTA_EXPERTS},
    "qwen3.5, experts": {"model_type": "qwen3_5_moe_text", **DELTA_EXPERTS},
    "lfm2": {"model_type": "lfm2", "layer_types": ["conv", "full_attention", "conv"], "head_dim": None},
    "lfm2, experts": {
        "model_type": "lfm2_moe",
        "layer_types": ["conv", "full_attention", "conv"],
        "head_dim": None,
        **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "num_dense_layers": 1},
    },
    "granite 4": {"model_type": "granitemoehybrid", **SCAN, "layer_types": ["mamba", "attention", "mamba"]},
    "granite 4, experts": {
        "model_type": "granitemoehybrid",
        **{**SCAN, "num_local_experts": 4, "num_experts_per_tok": 2},
        "layer_types": ["mamba", "attention", "mamba"],
    },
    "falcon-h1": {"model_type": "falcon_h1", **SCAN, "mamba_d_ssm": 96, "mamba_rms_norm": True},
}


def checkpoint_of(name: str) -> Any:
    config = {**BASE, "max_position_embeddings": 256, **MODELS[name]}
    config = {key: value for key, value in config.items() if value is not None}
    if "dynamic" in name:
        config["max_position_embeddings"] = 90
    found: Any = TinyCheckpoint(tiny_model(AutoConfig.for_model(**config)))
    found.name = name
    there = dict(found.model.named_parameters())
    own = [n for n, parameter in parameter_names(found.config, found.names()).items() if parameter in there]
    found.names = lambda: own
    return found


@pytest.mark.parametrize("name", MODELS)
def test_streamed_logits_are_those_of_the_whole_model_bit_for_bit(name: str) -> None:
    checkpoint, tokens = checkpoint_of(name), np.random.default_rng(0).integers(0, 97, 150)  # pieces of 64, 64 and 22
    whole = [piece.copy() for piece in TorchLogits(load_torch(checkpoint)).logits(tokens)]
    streamed = StreamedLogits(checkpoint)
    for _ in range(2):  # a second text, too
        pieces = list(streamed.logits(tokens))
        assert [len(piece) for piece in pieces] == [64, 64, 22]
        for piece, wanted in zip(pieces, whole, strict=True):
            assert np.array_equal(piece, wanted)


@pytest.mark.parametrize("name", MODELS)
def test_a_walk_over_streamed_layers_is_that_over_the_whole_model(name: str) -> None:
    checkpoint, window = checkpoint_of(name), torch.arange(80) % 97
    models = load_torch(checkpoint), StreamedModel(checkpoint, copy=True)
    whole, streamed = (TextSet(model, window[None]) for model in models)
    with torch.no_grad():
        hidden = [decoder.embed(window) for decoder in (whole, streamed)]
        for layer in range(len(whole.layers)):
            streamed.fetch(layer)
            hidden = [decoder.run(layer, h) for decoder, h in zip((whole, streamed), hidden, strict=True)]
            streamed.forget(layer)
            assert torch.equal(*hidden)
        assert torch.equal(whole.finish(hidden[0]), streamed.finish(hidden[1]))


def test_one_layer_is_there_at_a_time_and_writing_it_leaves_the_checkpoint_as_it_is() -> None:
    checkpoint = checkpoint_of("llama, tied")
    decoder = TextSet(StreamedModel(checkpoint, copy=True), torch.arange(16)[None])
    weight = decoder.layers[1].get_parameter("mlp.up_proj.weight")
    sizes = [sum(p.numel() for p in layer.parameters() if p.ndim == 2) for layer in decoder.layers]
    assert sizes == [0, 0, 0] and not weight.numel()
    decoder.fetch(1)
    before = weight.detach().clone()
    with torch.no_grad():
        weight.zero_()
    decoder.forget(1)
    assert not weight.numel()
    decoder.fetch(1)
    assert torch.equal(weight, before)


def test_a_tensor_of_another_shape_is_named() -> None:
    checkpoint = checkpoint_of("llama, tied")
    checkpoint._tensors["model.layers.1.mlp.up_proj.weight"] = np.zeros((4, 4), "f4")
    decoder = TextSet(StreamedModel(checkpoint, copy=True), torch.arange(16)[None])
    with pytest.raises(CheckpointError, match=r"holds model\.layers\.1\.mlp\.up_proj\.weight with shape \[4, 4\]"):
        decoder.fetch(1)
