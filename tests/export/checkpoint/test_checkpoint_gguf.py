"""A GGUF file gives the model it was made from: the same tensors, the same configuration, exact integers."""

from __future__ import annotations

import math
import re
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf_experts import apart
from gguf_files import CALLED, GPT_OSS, LESS_ONE, VOCABULARY, byte_vocabulary, interleave, tiny_model, write_gguf
from gguf_recurrent import by_projection
from graph_harness import TURNED, one_by_one
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from edge import catalog
from edge.errors import CheckpointError, EdgeError
from edge.export.checkpoint import open_checkpoint
from edge.export.facts.checkpoint import Checkpoint
from edge.export.graph.families import parameter_names
from edge.export.reference.in_torch import read_torch

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
SLIDING = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {"rope_type": "default", "rope_theta": 1_000_000.0},
}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5],
    "partial_rotary_factor": 0.5,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}


def rebuilt(checkpoint: Checkpoint) -> PreTrainedModel:
    """The transformers model that a checkpoint's configuration and tensors make."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**checkpoint.config)).eval()
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    names = set(parameter_names(checkpoint.config, checkpoint.names()).values())
    state = {name: read_torch(checkpoint, name, shapes[name]) for name in names}
    result = model.load_state_dict(state, strict=False)
    assert not result.unexpected_keys
    assert set(result.missing_keys) <= {"lm_head.weight"}
    model.tie_weights()
    return model


def same_logits(a: PreTrainedModel, b: PreTrainedModel, length: int = 48) -> bool:
    ids = torch.arange(length)[None] * 7 % 256
    with torch.no_grad():
        return torch.allclose(a(ids).logits, b(ids).logits, rtol=1e-5, atol=1e-5)


def llama3_factors(dim: int) -> np.ndarray:
    """The divisors that llama.cpp's converter stores, from its description: three ranges of wavelengths."""
    factors = []
    for i in range(dim // 2):
        wavelength = 2 * math.pi * LLAMA3["rope_theta"] ** (2 * i / dim)
        if wavelength < 8192 / 4:
            factors.append(1.0)
        elif wavelength > 8192:
            factors.append(8.0)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            factors.append(1 / ((1 - smooth) / 8 + smooth))
    return np.array(factors, np.float32)


LAYERS = {
    "num_hidden_layers": 5,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "sliding_window": 16,
    "head_dim": 32,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": VOCABULARY,
    "tie_word_embeddings": True,
}
DELTA = {
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
}
DELTA_EXPERTS = DELTA | {
    **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 32},
}
CONVOLUTIONS = {
    "layer_types": ["conv", "full_attention", "conv", "full_attention"],
    "block_auto_adjust_ff_dim": False,
    "conv_L_cache": 4,
    "norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
SCAN = {
    "head_dim": 32,
    "mamba_d_ssm": 96,
    "mamba_n_heads": 4,
    "mamba_d_state": 16,
    "mamba_n_groups": 2,
    "mamba_rms_norm": True,
    "mamba_norm_before_gate": False,
}
SCANNED = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "mamba_n_heads": 6,
    "mamba_d_state": 16,
    "mamba_n_groups": 2,
    "tie_word_embeddings": True,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 64}
MULTIPLIED = {
    **{"embedding_multiplier": 6.0, "attention_multiplier": 0.25, "residual_multiplier": 0.5, "logits_scaling": 4.0}
}
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # name: model type, its configuration, what else the file says
    "llama": ("llama", {}, {}),
    "llama tied": ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 3}, {}),
    "llama with a head size of its own": ("llama", {"head_dim": 16}, {}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}, {}),
    "llama with linear rope": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}},
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
    ),
    "mistral": ("mistral", {"sliding_window": None, "head_dim": 32}, {}),
    "qwen2": ("qwen2", {}, {}),
    "qwen2 with yarn": (
        "qwen2",
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0,
                             "original_max_position_embeddings": 64}},
        {"qwen2.rope.scaling.type": "yarn", "qwen2.rope.scaling.factor": 4.0,
         "qwen2.rope.scaling.original_context_length": 64},
    ),
    "qwen3": ("qwen3", {"head_dim": 40, "tie_word_embeddings": True}, {}),
    "smollm3": ("smollm3", {"tie_word_embeddings": True}, {}),
    "olmo2": ("olmo2", {"num_key_value_heads": 3}, {}),
    "granite": (
        "granite",
        {"embedding_multiplier": 6.0, "attention_multiplier": 0.25, "residual_multiplier": 0.5, "logits_scaling": 4.0},
        {"granite.embedding_scale": 6.0, "granite.attention.scale": 0.25, "granite.residual_scale": 0.5,
         "granite.logit_scale": 4.0},
    ),
    "granite without multipliers": ("granite", {"attention_multiplier": 32**-0.5, "mlp_bias": True}, {}),
    "phi3": ("phi3", {}, {}),
    "phi3 with a sliding window": ("phi3", {"sliding_window": 16}, {}),
    "gemma2": ("gemma2", {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16,
                          "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
                          "tie_word_embeddings": True}, {}),
    "gemma3n": ("gemma3n_text", {**LAYERS, "num_key_value_heads": 1, "laurel_rank": 16, "altup_active_idx": 1,
                                 "intermediate_size": [160, 160, 160, 192, 192], "final_logit_softcapping": 3.0,
                                 "activation_sparsity_pattern": [0.95, 0.9, 0.0, 0.0, 0.0]}, {}),
    "gemma4": ("gemma4_text", {**LAYERS, "global_head_dim": 64, "use_double_wide_mlp": True,
                               "final_logit_softcapping": 3.0}, {}),
    "gemma4 whose keys are values": (
        "gemma4_text", {**LAYERS, "num_key_value_heads": 3, "global_head_dim": 64, "num_global_key_value_heads": 1,
                        "attention_k_eq_v": True, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0,
                        "final_logit_softcapping": 3.0}, {}),
    "phi4 mini": ("phi3", {"hidden_size": 192, "tie_word_embeddings": True, "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75}}, {}),
    "ministral3": ("ministral3", {"head_dim": 16, "rope_parameters": YARN | {"llama_4_scaling_beta": 0.25}}, {}),
    "olmo3": (
        "olmo3", {"num_key_value_heads": 3, "sliding_window": 16, "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
            "full_attention": {"rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0, "attention_factor": 1.25,
                               "original_max_position_embeddings": 32}}},
        {"olmo2.rope.scaling.type": "yarn", "olmo2.rope.scaling.factor": 4.0,
         "olmo2.rope.scaling.yarn_attn_factor": 1.25, "olmo2.rope.scaling.original_context_length": 32},
    ),
    "exaone4": ("exaone4", {"sliding_window": 16, "sliding_window_pattern": 2, "head_dim": 16}, {}),
    "exaone4 without windows": (
        "exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 4, "tie_word_embeddings": True}, {}),
    "ernie4_5": ("ernie4_5", {"head_dim": 32, "tie_word_embeddings": True}, {}),
    "ernie4_5 with biases": ("ernie4_5", {"head_dim": 32, "use_bias": True}, {}),
    "olmoe": ("olmoe", {"num_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 3}, {}),
    "qwen3moe": ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "head_dim": 32,
                               "norm_topk_prob": True}, {}),
    "gpt-oss": ("gpt_oss", GPT_OSS, {}),
    "granitemoe": ("granitemoe", EXPERTS | MULTIPLIED | {"attention_bias": True}, {}),
    "granitemoe with a shared expert": ("granitemoeshared", EXPERTS | MULTIPLIED | {
        "shared_intermediate_size": 64, "tie_word_embeddings": True}, {}),
    "lfm2moe": ("lfm2_moe", CONVOLUTIONS | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
                                            "num_dense_layers": 1}, {}),
    "granite 4": ("granitemoehybrid", SCANNED | MULTIPLIED | {
        "num_local_experts": 0, "intermediate_size": 64, "shared_intermediate_size": 64}, {}),
    "granite 4 with experts": ("granitemoehybrid", SCANNED | MULTIPLIED | EXPERTS | {
        "shared_intermediate_size": 64, "attention_bias": True, "mamba_conv_bias": False,
        "position_embedding_type": "rope"}, {}),
    "hunyuan": ("hunyuan_v1_dense", {"head_dim": 32, "tie_word_embeddings": True}, {}),
    "cohere2": ("cohere2", {"sliding_window": 16, "logit_scale": 0.25, "tie_word_embeddings": True}, {}),
    "starcoder2": ("starcoder2", {"sliding_window": None}, {}),
    "starcoder2 without biases": ("starcoder2", {"sliding_window": None, "use_bias": False}, {}),
    "stablelm": ("stablelm", {"partial_rotary_factor": 0.5}, {}),
    "stablelm with biases": ("stablelm", {"partial_rotary_factor": 0.5, "use_qkv_bias": True,
                                          "use_parallel_residual": True}, {}),
    "bitnet": ("bitnet", {"hidden_act": "silu", "tie_word_embeddings": True},
               {"bitnet.rope.scaling.type": "linear", "bitnet.rope.scaling.factor": 1.0}),
    "qwen3.5": ("qwen3_5_text", DELTA | {"linear_value_head_dim": 16}, {}),
    "qwen3.5 with several values of a key": (
        "qwen3_5_text", DELTA | {"linear_num_value_heads": 6, "tie_word_embeddings": True}, {}),
    "qwen3-next": ("qwen3_next", DELTA_EXPERTS, {}),
    "qwen3-next with several values of a key": ("qwen3_next", DELTA_EXPERTS | {
        "linear_num_value_heads": 6, "tie_word_embeddings": True}, {}),
    "qwen3.5 with experts": ("qwen3_5_moe_text", DELTA_EXPERTS, {}),
    "qwen3.5 with experts and several values of a key": ("qwen3_5_moe_text", DELTA_EXPERTS | {
        "linear_num_value_heads": 6, "tie_word_embeddings": True}, {}),
    "lfm2": ("lfm2", CONVOLUTIONS, {}),
    "falcon-h1": ("falcon_h1", SCAN, {}),
    "falcon-h1 without a norm": ("falcon_h1", SCAN | {"mamba_rms_norm": False, "mamba_n_groups": 1}, {}),
    "gemma3": ("gemma3_text", {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16,
                               "num_hidden_layers": 7, "rope_parameters": SLIDING, "tie_word_embeddings": True}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_float_file_gives_back_every_tensor_and_the_same_logits(tmp_path: Path, name: str) -> None:
    model_type, settings, metadata = MODELS[name]
    model = tiny_model(model_type, **settings)
    checkpoint = open_checkpoint(str(write_gguf(tmp_path / "m.gguf", model, metadata=metadata)))
    parameters = dict(model.named_parameters())
    parameters |= {n: b for n, b in model.named_buffers() if n in model.state_dict()}
    turned, arrays = model_type in TURNED, {name: p.detach().numpy() for name, p in parameters.items()}
    if model_type == "qwen3_next":
        arrays = {k: v for n, a in arrays.items() for k, v in by_projection(model.config, n, a).items()}
    wanted = {k: v for n, a in arrays.items() for k, v in one_by_one(n, a, turned=turned).items()}
    assert set(checkpoint.names()) == set(wanted)
    for tensor, expected in wanted.items():
        found = checkpoint.read(tensor)
        assert found.dtype == np.float32
        assert checkpoint.shape(tensor) == tuple(expected.shape) == found.shape
        if tensor.endswith("A_log") or (model_type in LESS_ONE and tensor.endswith("norm.weight")):
            # It was changed in float32, as norms were by adding 1.
            assert np.abs(found - expected).max() < 1e-6
        else:
            assert np.array_equal(found, expected)
    assert same_logits(rebuilt(checkpoint), model)


@pytest.mark.parametrize(
    ("name", "missing"),
    [("blk.2.ffn_up_exps.weight", "model.layers.2.block_sparse_moe.experts.0.up_proj.weight"),
     ("blk.1.ffn_gate_shexp.weight", "model.layers.1.shared_mlp.input_linear.weight"),
     ("blk.3.ffn_gate_inp.weight", "model.layers.3.block_sparse_moe.router.weight")],
)  # fmt: skip
def test_a_tensor_of_experts_that_is_missing_is_named(tmp_path: Path, name: str, missing: str) -> None:
    model = tiny_model("granitemoeshared", **EXPERTS, shared_intermediate_size=64)
    with pytest.raises(CheckpointError, match=f"lacks the tensor '{re.escape(missing)}'"):
        open_checkpoint(str(write_gguf(tmp_path / "m.gguf", model, leave_out=name)))


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [("expert_count", 300_000, "300000 experts to each of 4 layers"),
     ("expert_used_count", 5, "chooses 5 of 4 experts"), ("expert_used_count", 0, "gives .*expert_used_count as 0")],
)  # fmt: skip
@pytest.mark.parametrize(
    "name",
    [
        "olmoe",
        "qwen3moe",
        "gpt-oss",
        "granitemoe",
        "lfm2moe",
        "granite 4 with experts",
        "qwen3-next",
        "qwen3.5 with experts",
    ],
)
def test_numbers_of_experts_that_no_model_has_are_refused(
    tmp_path: Path, name: str, key: str, value: int, reason: str
) -> None:
    kind, settings, more = MODELS[name]
    metadata = {**more, f"{CALLED.get(kind, kind)}.{key}": value}
    with pytest.raises(CheckpointError, match=reason):
        open_checkpoint(str(write_gguf(tmp_path / "m.gguf", tiny_model(kind, **settings), metadata=metadata)))


def test_a_gate_and_an_up_of_other_sizes_are_no_two_halves(tmp_path: Path) -> None:
    model = tiny_model("granitemoeshared", **EXPERTS, shared_intermediate_size=64)
    name, rows = "blk.1.ffn_gate_shexp.weight", np.zeros((96, 96), np.float32)
    gate = write_gguf(tmp_path / "m.gguf", model, extra={name: rows})
    with pytest.raises(CheckpointError, match=r"have the shapes \[96, 96\] and \[64, 96\]"):
        open_checkpoint(str(gate))


def test_two_tensors_that_are_one_in_the_model_are_refused(tmp_path: Path) -> None:
    kind, settings, more = MODELS["granite 4 with experts"]
    extra = {"blk.1.ffn_gate.weight": np.zeros((64, 96), np.float32)}
    path = write_gguf(tmp_path / "m.gguf", tiny_model(kind, **settings), metadata=more, extra=extra)
    with pytest.raises(CheckpointError, match="holds both 'blk.1.ffn_gate(_shexp)?.weight' and 'blk.1.ffn_gate"):
        open_checkpoint(str(path))


def test_what_no_graph_here_does_is_refused_by_name(tmp_path: Path) -> None:
    of_lfm = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "num_dense_layers": 1}
    for model, key, value, reason in (
        (tiny_model("lfm2_moe", **CONVOLUTIONS, **of_lfm), "lfm2moe.expert_gating_func", 1, "scored by sigmoids"),
        (tiny_model("granitemoe", **EXPERTS), "granitemoe.rope.scaling.finetuned", False, "without rotations"),
    ):
        with pytest.raises(CheckpointError, match=reason):
            open_checkpoint(str(write_gguf(tmp_path / "m.gguf", model, metadata={key: value})))


def test_mistral_small_has_the_architecture_of_ministral_3(tmp_path: Path) -> None:
    model = tiny_model("mistral", sliding_window=None, head_dim=32)
    checkpoint = open_checkpoint(str(write_gguf(tmp_path / "m.gguf", model, called="mistral3")))
    assert checkpoint.config["model_type"] == "mistral"
    assert same_logits(rebuilt(checkpoint), model)


@pytest.mark.parametrize("name", ["qwen3.5", "qwen3-next", "qwen3.5 with experts"])
def test_layers_that_guess_further_tokens_are_not_read(tmp_path: Path, name: str) -> None:
    kind, settings, _ = MODELS[name]
    model = tiny_model(kind, **settings)
    table = gguf.get_tensor_name_map(next(k for k, n in gguf.MODEL_ARCH_NAMES.items() if n == CALLED[kind]), 5)
    layer = [(n, p.detach().numpy()) for n, p in model.model.layers[1].named_parameters("model.layers.4")]
    parts = [part for each in layer for part in apart(*each, turned=False)]
    extra = {table.get_name(n, (".weight",)): values for n, values in parts}
    extra |= {f"blk.4.nextn.{norm}.weight": np.ones(96, np.float32) for norm in ("enorm", "hnorm")}
    extra["blk.4.nextn.eh_proj.weight"] = np.ones((96, 192), np.float32)
    model.config.num_nextn_predict_layers = 1
    checkpoint = open_checkpoint(str(write_gguf(tmp_path / "m.gguf", model, extra=extra)))
    assert not [n for n in checkpoint.names() if ".layers.4." in n]
    assert same_logits(rebuilt(checkpoint), model)


def test_qwen3_next_of_older_converters_has_the_projections_of_linear_attention_in_one(tmp_path: Path) -> None:
    """And does not say which layers have it: all but every fourth."""
    model = tiny_model("qwen3_next", **DELTA_EXPERTS | {"linear_num_value_heads": 4, "layer_types": None})
    path = write_gguf(tmp_path / "older.gguf", model, older=True)
    assert "blk.0.ssm_in.weight" in {tensor.name for tensor in gguf.GGUFReader(path).tensors}
    older, newer = open_checkpoint(str(path)), open_checkpoint(str(write_gguf(tmp_path / "newer.gguf", model)))
    assert older.config == newer.config
    assert sorted(older.names()) == sorted(newer.names())
    for name in older.names():
        assert older.shape(name) == newer.shape(name)
        assert bits(older.read(name)) == bits(newer.read(name))
        assert bits(older.read(name, slice(1, 2))) == bits(older.read(name)[1:2])
    assert same_logits(rebuilt(older), model)


def test_the_gate_of_a_shared_expert_may_be_a_vector(tmp_path: Path) -> None:
    """As llama.cpp writes it when it quantizes a file."""
    model = tiny_model("qwen3_next", **DELTA_EXPERTS)
    gates = {f"blk.{i}.ffn_gate_inp_shexp.weight": np.full(96, i, np.float32) for i in range(4)}
    checkpoint = open_checkpoint(str(write_gguf(tmp_path / "m.gguf", model, extra=gates)))
    name = "model.layers.3.mlp.shared_expert_gate.weight"
    assert checkpoint.shape(name) == (1, 96)
    assert np.array_equal(checkpoint.read(name), np.full((1, 96), 3))


@pytest.mark.parametrize(("kind", "dim"), [(Type.Q8_0, 64), (Type.Q4_0, 32), (Type.F16, 32), (Type.BF16, 64),
                                           (Type.Q8_0, 16), (Type.Q4_K, 128)])  # fmt: skip
def test_columns_in_another_order_keep_the_bits_of_a_file_and_stay_there(tmp_path: Path, kind: Type, dim: int) -> None:
    """dim: neighbours that stay neighbours. Blocks of Q8_0 have 32 columns, of Q4_K 256."""
    sizes = {"linear_num_value_heads": 8, "linear_key_head_dim": dim, "linear_value_head_dim": dim}
    model = tiny_model("qwen3_5_text", **DELTA | sizes)
    checkpoint = open_checkpoint(str(write_gguf(tmp_path / "m.gguf", model, types={"ssm_out": kind})))
    name = "model.layers.0.linear_attn.out_proj.weight"
    found, values = checkpoint.gguf_tensor(name, in_place=True), checkpoint.read(name)
    whole = (kind, dim) not in ((Type.Q8_0, 16), (Type.Q4_K, 128))  # blocks in transformers' order, too
    assert (checkpoint.blocks(name) is not None) == (checkpoint.form(name) is not None) == (whole and kind in EXACT)
    assert found is not None and found.place is not None and found.inputs is not None
    in_file = gguf.quants.dequantize(found.raw, kind).reshape(values.shape)
    assert np.array_equal(in_file[:, found.inputs], values)
    if (exact := checkpoint.blocks(name)) is not None:
        assert np.array_equal(exact.dequantize(), values)


@pytest.mark.parametrize(
    ("extra", "reason"),
    [({"blk.0.ssm_in.weight": (160, 96)}, r"holds both 'blk\.0\.attn_(qkv|gate)\.weight' and 'blk\.0\.ssm_in\.weight'"),
     ({"blk.0.ssm_in.weight": (159, 96)}, r"'blk\.0\.ssm_in\.weight' has 159 rows where .* call for 160"),
     ({"blk.2.ssm_ba.weight": (2, 96)}, r"'blk\.2\.ssm_ba\.weight' has 2 rows where the model's sizes call for 4"),
     ({"blk.2.ssm_ba.weight": (4, 95)}, r"in_proj_b\.weight' has shape \[2, 95\] .* calls for \[2, 96\]"),
     ({"blk.3.ffn_gate_up_exps.weight": (4, 128, 96)}, r"'blk\.3\.ffn_gate_up_exps\.weight', which .* newer variant"),
     ({"blk.1.ffn_gate_inp_shexp.weight": (95,)}, r"expert_gate\.weight' has shape \[95\] .* calls for \[1, 96\]")],
)  # fmt: skip
def test_a_qwen3_next_of_another_layout_is_refused(
    tmp_path: Path, extra: dict[str, tuple[int, ...]], reason: str
) -> None:
    model = tiny_model("qwen3_next", **DELTA_EXPERTS | {"linear_value_head_dim": 24})
    given = {name: np.zeros(shape, np.float32) for name, shape in extra.items()}
    with pytest.raises(CheckpointError, match=reason):
        open_checkpoint(str(write_gguf(tmp_path / "m.gguf", model, extra=given)))


def test_falcon_h1s_multipliers_are_in_the_matrices(tmp_path: Path) -> None:
    several = {"mlp_multipliers": [0.5, 2.0], "ssm_multipliers": [0.5, 0.75, 1.5, 2.0, 0.25]}
    names = ("key", "attention_in", "attention_out", "ssm_in", "ssm_out", "embedding", "lm_head")
    each = {f"{name}_multiplier": 0.5 + i / 4 for i, name in enumerate(names)}
    model = tiny_model("falcon_h1", **SCAN, **several, **each)
    assert same_logits(rebuilt(open_checkpoint(str(write_gguf(tmp_path / "m.gguf", model)))), model)


def test_llama_3s_rope_is_recovered_from_its_divisors(tmp_path: Path) -> None:
    model = tiny_model("llama", head_dim=64, max_position_embeddings=16384, rope_parameters=LLAMA3)
    extra = {"rope_freqs.weight": llama3_factors(64)}
    checkpoint = open_checkpoint(str(write_gguf(tmp_path / "m.gguf", model, extra=extra)))
    assert checkpoint.config["rope_parameters"] == LLAMA3
    assert same_logits(rebuilt(checkpoint), model)


def test_divisors_that_are_not_llama_3s_are_refused(tmp_path: Path) -> None:
    extra = {"rope_freqs.weight": np.linspace(1, 3, 16, dtype=np.float32)}
    path = write_gguf(tmp_path / "m.gguf", tiny_model("llama"), extra=extra)
    with pytest.raises(CheckpointError, match="not Llama 3's"):
        open_checkpoint(str(path))


def test_phi_3s_long_rope_comes_with_both_lists_of_factors(tmp_path: Path) -> None:
    model = tiny_model("phi3", rope_parameters=LONG, original_max_position_embeddings=64)
    path = write_gguf(
        tmp_path / "m.gguf",
        model,
        metadata={"phi3.rope.scaling.original_context_length": 64},
        extra={
            "rope_factors_long.weight": np.array(LONG["long_factor"], np.float32),
            "rope_factors_short.weight": np.array(LONG["short_factor"], np.float32),
        },
    )
    again = rebuilt(open_checkpoint(str(path)))
    assert same_logits(again, model, length=48)
    assert same_logits(again, model, length=100)


EXACT = {Type.Q8_0: 8, Type.Q4_0: 4, Type.MXFP4: 8}
OTHERS = [
    *(Type.F32, Type.F16, Type.BF16, Type.Q4_1, Type.Q5_0, Type.Q5_1),
    *(Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K),
    *(Type.IQ1_S, Type.IQ1_M, Type.IQ2_XXS, Type.IQ2_XS, Type.IQ2_S, Type.IQ3_XXS, Type.IQ3_S),
    *(Type.IQ4_NL, Type.IQ4_XS, Type.TQ1_0, Type.TQ2_0),
]


@pytest.mark.parametrize("kind", [*EXACT, *OTHERS], ids=lambda kind: kind.name)
def test_every_stored_type_reads_as_gguf_dequantizes_it(tmp_path: Path, kind: Type) -> None:
    model = tiny_model("llama", hidden_size=256, intermediate_size=256, num_attention_heads=4, num_hidden_layers=1)
    types = dict.fromkeys(("attn_q.", "attn_v.", "ffn_down", "token_embd"), kind)
    path = write_gguf(tmp_path / "m.gguf", model, types=types)
    checkpoint = open_checkpoint(str(path))
    stored = {t.name: t for t in gguf.GGUFReader(path).tensors}
    for name, source in {
        "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
        "model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight",
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.0.self_attn.q_proj.weight": "blk.0.attn_q.weight",
    }.items():
        reference = gguf.quants.dequantize(stored[source].data, stored[source].tensor_type)
        found, blocks = checkpoint.read(name), checkpoint.blocks(name)
        if source == "blk.0.attn_q.weight":
            found = interleave(found, 4)  # to the file's row order
        assert checkpoint.stored_type(name) == kind.name
        assert bits(found) == bits(reference)
        if kind in EXACT:
            assert blocks is not None
            assert (blocks.bits, blocks.block_size, blocks.zero_points) == (EXACT[kind], 32, None)
            assert bits(blocks.dequantize()) == bits(checkpoint.read(name))
        else:
            assert blocks is None


def iq4_xs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of IQ4_XS as ggml's description has them, and what they mean: of 256 weights a float16 scale, 6 bits of a
    scale for each 32, and for each weight 4 bits that name one of 16 levels."""
    levels = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])
    raw, meant = [], []
    for block in values.reshape(-1, 8, 32):
        d = np.float16(np.abs(block).max() / (127 * 31))
        scales = np.clip(np.rint(np.abs(block).max(1) / 127 / float(d)), 1, 31).astype(int)
        each = float(d) * scales[:, None] * levels
        q = np.abs(block[:, :, None] - each[:, None, :]).argmin(-1)
        meant.append(np.take_along_axis(each, q, 1))
        stored = scales + 32
        high = sum(int(s >> 4) << 2 * i for i, s in enumerate(stored))
        low = [int(stored[i] & 15 | (stored[i + 1] & 15) << 4) for i in range(0, 8, 2)]
        packed = (q[:, :16] | q[:, 16:] << 4).astype(np.uint8).tobytes()
        raw.append(d.tobytes() + high.to_bytes(2, "little") + bytes(low) + packed)
    rows = values.shape[0]
    return np.frombuffer(b"".join(raw), np.uint8).reshape(rows, -1), np.reshape(meant, values.shape)


def test_iq4_xs_is_what_its_description_says_and_becomes_8_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import edge

    model = tiny_model("llama", hidden_size=256, intermediate_size=256, num_attention_heads=4, num_hidden_layers=1)
    meant = iq4_xs(model.model.layers[0].mlp.down_proj.weight.detach().numpy())[1]
    monkeypatch.setattr("gguf_files.quantized", lambda values, kind: iq4_xs(values)[0])
    path = write_gguf(tmp_path / "m.gguf", model, types={"ffn_down": Type.IQ4_XS})
    found = open_checkpoint(str(path)).read("model.layers.0.mlp.down_proj.weight")
    np.testing.assert_allclose(found, meant, rtol=1e-5, atol=1e-7)
    said: list[str] = []
    edge.export(path, tmp_path / "m.edge", effort="quick", check=False, say=said.append)
    assert "1 tensor of type IQ4_XS is dequantized and quantized anew, in 8 bits." in said


def bits(values: np.ndarray) -> bytes:
    return np.ascontiguousarray(values, np.float32).tobytes()


def test_a_file_is_described_by_its_name_licence_and_special_tokens(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(write_gguf(tmp_path / "Tiny.Q4_0.gguf", tiny_model("llama"))))
    assert (checkpoint.name, checkpoint.kind, checkpoint.licence) == ("Tiny.Q4_0", "gguf", "mit")
    tokens = checkpoint.tokenizer.tokens
    assert (tokens.bos, tokens.eos, tokens.add_bos) == (None, [1, 0], False)
    assert checkpoint.tokenizer.chat_template == "{{ messages }}"
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer.json)
    assert tokenizer.get_vocab_size() == len(byte_vocabulary()[0])


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """A model in three files."""
    write_gguf(tmp_path / "m.gguf", tiny_model("llama"), split_max_tensors=15)
    files = sorted(tmp_path.glob("*.gguf"))
    assert [file.name for file in files] == [f"m-{number:05d}-of-00003.gguf" for number in (1, 2, 3)]
    return files


@pytest.mark.parametrize("given", range(3))
@pytest.mark.parametrize("first_without_tensors", [False, True])
def test_the_parts_of_a_model_are_read_as_one(tmp_path: Path, given: int, first_without_tensors: bool) -> None:
    model, types = tiny_model("llama"), {"attn_v.": Type.Q8_0}
    whole = open_checkpoint(str(write_gguf(tmp_path / "whole.gguf", model, types=types)))
    room = {"split_max_tensors": 20 if first_without_tensors else 15, "small_first_shard": first_without_tensors}
    write_gguf(tmp_path / "m.gguf", model, types=types, **room)
    checkpoint = open_checkpoint(str(tmp_path / f"m-0000{given + 1}-of-00003.gguf"))
    assert checkpoint.name == "m"
    assert checkpoint.config == whole.config and checkpoint.tokenizer == whole.tokenizer
    assert sorted(checkpoint.names()) == sorted(whole.names())
    for name in whole.names():
        assert bits(checkpoint.read(name)) == bits(whole.read(name))
        assert checkpoint.stored_type(name) == whole.stored_type(name)


def test_a_whole_file_may_have_the_name_of_a_part(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m-00002-of-00003.gguf", tiny_model("llama"))
    assert same_logits(rebuilt(open_checkpoint(str(path))), tiny_model("llama"))


def overwrite(path: Path, key: str, value: int) -> None:
    """Another value for a number of 32 bits in the header."""
    data = bytearray(path.read_bytes())
    at = data.index(struct.pack("<Q", len(key)) + key.encode()) + 8 + len(key)
    assert struct.unpack_from("<I", data, at) == (4,)
    struct.pack_into("<I", data, at + 4, value)
    path.write_bytes(data)


class TestRefusals:
    """One sentence for whatever is wrong with a file."""

    def test_a_file_that_is_no_gguf(self, tmp_path: Path) -> None:
        (tmp_path / "m.gguf").write_bytes(b"PK\x03\x04 not a model at all")
        with pytest.raises(CheckpointError, match="does not begin with the letters GGUF"):
            open_checkpoint(str(tmp_path / "m.gguf"))

    @pytest.mark.parametrize("kept", [0, 3, 10, 200, 3000])
    def test_a_header_that_breaks_off(self, tmp_path: Path, kept: int) -> None:
        whole = write_gguf(tmp_path / "whole.gguf", tiny_model("llama")).read_bytes()
        (tmp_path / "m.gguf").write_bytes(whole[:kept])
        with pytest.raises(CheckpointError, match=r"m\.gguf (is|cannot)"):
            open_checkpoint(str(tmp_path / "m.gguf"))

    def test_tensors_that_break_off(self, tmp_path: Path) -> None:
        whole = write_gguf(tmp_path / "whole.gguf", tiny_model("llama")).read_bytes()
        (tmp_path / "m.gguf").write_bytes(whole[:-1000])
        with pytest.raises(CheckpointError, match=r"cut short: the tensor '.*' ends at byte \d+, the file at \d+"):
            open_checkpoint(str(tmp_path / "m.gguf"))

    @pytest.mark.parametrize("version", [1, 9])
    def test_an_unknown_version(self, tmp_path: Path, version: int) -> None:
        whole = bytearray(write_gguf(tmp_path / "m.gguf", tiny_model("llama")).read_bytes())
        whole[4] = version
        (tmp_path / "m.gguf").write_bytes(whole)
        with pytest.raises(CheckpointError, match=rf"m\.gguf is GGUF version {version}; versions 2 and 3 in little"):
            open_checkpoint(str(tmp_path / "m.gguf"))

    def test_a_big_endian_file(self, tmp_path: Path) -> None:
        write_gguf(tmp_path / "m.gguf", tiny_model("llama"), endianess=gguf.GGUFEndian.BIG)
        with pytest.raises(CheckpointError, match=r"m\.gguf is big-endian \(GGUF version 3\); versions 2 and 3 in"):
            open_checkpoint(str(tmp_path / "m.gguf"))

    @pytest.mark.parametrize(("missing", "named"), [
        ([1], r"m-00002-of-00003\.gguf cannot"),
        ([0], r"m-00001-of-00003\.gguf cannot"),
        ([0, 1], r"m-00001-of-00003\.gguf and 1 more cannot"),
    ])  # fmt: skip
    def test_a_missing_part(self, parts: list[Path], missing: list[int], named: str) -> None:
        for number in missing:
            parts[number].unlink()
        with pytest.raises(CheckpointError, match=rf"m-00003-of-00003\.gguf is one of 3 parts .* of which {named} be"):
            open_checkpoint(str(parts[2]))

    def test_a_part_of_another_name(self, parts: list[Path], tmp_path: Path) -> None:
        other = parts[1].rename(tmp_path / "second.gguf")
        with pytest.raises(CheckpointError, match=r"second\.gguf is one of 3 parts .*; name it as llama\.cpp does"):
            open_checkpoint(str(other))

    def test_a_part_of_another_number(self, parts: list[Path]) -> None:
        parts[2].write_bytes(parts[1].read_bytes())
        with pytest.raises(CheckpointError, match=r"m-00003-of-00003\.gguf is not part 3 of 3, as its name says"):
            open_checkpoint(str(parts[0]))

    def test_a_part_of_another_model(self, parts: list[Path], tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        write_gguf(tmp_path / "other/m.gguf", tiny_model("llama", num_hidden_layers=3), split_max_tensors=12)
        (tmp_path / "other/m-00003-of-00003.gguf").replace(parts[2])
        with pytest.raises(CheckpointError, match=r"The 3 parts of .*m-00001-of-00003\.gguf hold \d+ tensors, and 39"):
            open_checkpoint(str(parts[0]))

    def test_a_part_that_breaks_off(self, parts: list[Path]) -> None:
        parts[1].write_bytes(parts[1].read_bytes()[:-1000])
        with pytest.raises(CheckpointError, match=r"m-00002-of-00003\.gguf is cut short: the tensor"):
            open_checkpoint(str(parts[0]))

    def test_an_unknown_architecture(self, tmp_path: Path) -> None:
        whole = write_gguf(tmp_path / "m.gguf", tiny_model("llama")).read_bytes()
        (tmp_path / "m.gguf").write_bytes(whole.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0mamba", 1))
        with pytest.raises(CheckpointError, match="architecture 'mamba'; known in GGUF files are: .*gemma3, .*llama, "):
            open_checkpoint(str(tmp_path / "m.gguf"))

    def test_a_type_that_is_not_read(self, tmp_path: Path) -> None:
        types = {"blk.1.ffn_up": Type.NVFP4}
        model = tiny_model("llama", hidden_size=256, num_attention_heads=4)
        path = write_gguf(tmp_path / "m.gguf", model, types=types)
        with pytest.raises(CheckpointError, match=r"'blk\.1\.ffn_up\.weight' is stored as NVFP4; read are BF16"):
            open_checkpoint(str(path))

    def test_a_missing_tensor(self, tmp_path: Path) -> None:
        path = write_gguf(tmp_path / "m.gguf", tiny_model("llama"), leave_out="blk.2.ffn_up.weight")
        with pytest.raises(CheckpointError, match=r"lacks the tensor 'model\.layers\.2\.mlp\.up_proj\.weight'"):
            open_checkpoint(str(path))

    @pytest.mark.parametrize(("source", "name"), [
        ("blk.4.attn_norm.weight", "layers.4.input_layernorm.weight"),  # the metadata counts 4 layers
        ("blk.1.attn_q.bias", "layers.1.self_attn.q_proj.bias"),
    ])  # fmt: skip
    def test_a_tensor_without_a_place(self, tmp_path: Path, source: str, name: str) -> None:
        path = write_gguf(tmp_path / "m.gguf", tiny_model("llama"), extra={source: np.ones(96, np.float32)})
        with pytest.raises(CheckpointError, match=re.escape(f"m.gguf holds the tensor 'model.{name}', for which")):
            open_checkpoint(str(path))

    def test_a_block_with_a_scale_that_is_no_number(self, tmp_path: Path) -> None:
        types = {"blk.1.ffn_up": Type.Q8_0}
        path = write_gguf(tmp_path / "m.gguf", tiny_model("llama"), types=types)
        start = next(t.data_offset for t in gguf.GGUFReader(path).tensors if t.name == "blk.1.ffn_up.weight")
        data = bytearray(path.read_bytes())
        data[start : start + 2] = np.float16(np.nan).tobytes()
        path.write_bytes(data)
        checkpoint = open_checkpoint(str(path))
        for read in (checkpoint.read, checkpoint.blocks):
            with pytest.raises(CheckpointError, match=r"the tensor 'blk\.1\.ffn_up\.weight' holds NaN or infinity"):
                read("model.layers.1.mlp.up_proj.weight")

    def test_tensors_that_contradict_the_metadata(self, tmp_path: Path) -> None:
        model = tiny_model("llama")
        model.config.intermediate_size = 128  # its tensors have 160
        path = write_gguf(tmp_path / "m.gguf", model)
        with pytest.raises(CheckpointError, match=r"gate_proj\.weight' has shape \[160, 96\] .* calls for \[128, 96\]"):
            open_checkpoint(str(path))

    @pytest.mark.parametrize(("key", "value", "sentence"), [
        ("block_count", 20_004, "gives llama.block_count as 20004, and the file holds tensors of 4 layers"),
        ("block_count", 0, "gives llama.block_count as 0, and no model has less than 1"),
        ("context_length", 1 << 31, "gives llama.context_length as 2147483648, and no model has more than 16,777,216"),
        ("rope.dimension_count", 96, "gives llama.rope.dimension_count as 96, and each head is 32 wide"),
        ("attention.value_length", 64, "gives llama.attention.value_length as 64, and each head is 32 wide"),
        ("attention.key_length", 64, "gives llama.attention.value_length as 32, and each head is 64 wide"),
        ("embedding_length", 192, "'model.embed_tokens.weight' has shape [272, 96] where the configuration calls for"),
        ("feed_forward_length", 1 << 31, "gate_proj.weight' has shape [160, 96] where the configuration calls for"),
        ("attention.head_count", 6, "q_proj.weight' has shape [96, 96] where the configuration calls for [192, 96]"),
        ("attention.head_count_kv", 3, "k_proj.weight' has shape [32, 96] where the configuration calls for [96, 96]"),
    ])  # fmt: skip
    def test_a_size_that_the_tensors_do_not_have(self, tmp_path: Path, key: str, value: int, sentence: str) -> None:
        path = write_gguf(tmp_path / "m.gguf", tiny_model("llama"))
        overwrite(path, f"llama.{key}", value)
        with pytest.raises(CheckpointError, match=re.escape(sentence)):
            open_checkpoint(str(path))

    def test_a_corrupt_layer_count_is_refused_before_a_model_is_described(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = write_gguf(tmp_path / "m.gguf", tiny_model("gemma3_text", head_dim=32, sliding_window=16))
        overwrite(path, "gemma3.block_count", (1 << 31) + 4)
        monkeypatch.setattr("transformers.AutoConfig.for_model", lambda *args, **kwargs: pytest.fail("it is described"))
        with pytest.raises(CheckpointError, match="gemma3.block_count as 2147483652, and the file holds tensors of 4"):
            open_checkpoint(str(path))

    @pytest.mark.parametrize(("key", "value", "sentence"), [
        ("llama.attention.head_count", "3", "llama.attention.head_count must be a whole number, not '3'"),
        ("llama.rope.freq_base", float("nan"), "llama.rope.freq_base must be a finite number, not nan"),
        ("llama.rope.freq_base", -1.0, "gives llama.rope.freq_base as -1.0, and no model has it at zero or below"),
        ("general.alignment", 0, "general.alignment is 0 and no power of two"),
        ("tokenizer.ggml.pre", 7, "tokenizer.ggml.pre must be a text, not 7"),
    ])  # fmt: skip
    def test_metadata_of_another_kind(self, tmp_path: Path, key: str, value: Any, sentence: str) -> None:
        path = write_gguf(tmp_path / "m.gguf", tiny_model("llama"), metadata={"later": "x", key: value})
        with pytest.raises(CheckpointError, match=re.escape(sentence)):
            _ = open_checkpoint(str(path)).tokenizer

    def test_an_embedding_of_other_tokens_than_the_vocabulary(self, tmp_path: Path) -> None:
        model = tiny_model("llama")
        model.model.embed_tokens = torch.nn.Embedding(300, 96)
        path = write_gguf(tmp_path / "m.gguf", model)
        with pytest.raises(CheckpointError, match=r"names 272 tokens, and its embedding .* has 300 rows"):
            open_checkpoint(str(path))

    def test_a_tensor_that_begins_elsewhere(self, tmp_path: Path) -> None:
        path = write_gguf(tmp_path / "m.gguf", tiny_model("llama"))
        data = bytearray(path.read_bytes())
        at = data.index(b"blk.1.ffn_up.weight") + len(b"blk.1.ffn_up.weight") + 4 + 2 * 8 + 4
        data[at] ^= 32
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=r"'blk\.1\.ffn_up\.weight' begins at byte \d+, where \d+ is"):
            open_checkpoint(str(path))

    @pytest.mark.parametrize("damage", ["nested lists", "dimensions"])
    def test_a_header_that_goes_on_and_on(self, tmp_path: Path, damage: str) -> None:
        whole = write_gguf(tmp_path / "m.gguf", tiny_model("llama")).read_bytes()
        if damage == "nested lists":  # each holds one more
            value = struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 100_000
            content = struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + value
        else:
            content = struct.pack("<IQQQ", 3, 1, 0, 1) + b"t" + struct.pack("<I", 500_000) + b"\xff" * 4_000_000
        (tmp_path / "m.gguf").write_bytes(whole[:4] + content)
        with pytest.raises(CheckpointError, match="m.gguf is damaged or cut short"):
            open_checkpoint(str(tmp_path / "m.gguf"))

    def test_factors_of_another_head(self, tmp_path: Path) -> None:
        model = tiny_model("phi3", rope_parameters=LONG, original_max_position_embeddings=64)
        factors = np.array([*LONG["long_factor"], 6.0], np.float32)
        extra = {"rope_factors_long.weight": factors, "rope_factors_short.weight": factors}
        with pytest.raises(CheckpointError, match="dimension_count as 16, and the file holds 9 rope factors instead"):
            open_checkpoint(str(write_gguf(tmp_path / "m.gguf", model, extra=extra)))

    def test_a_tensor_that_the_family_does_not_know(self, tmp_path: Path) -> None:
        extra = {"blk.0.attn_sinks.weight": np.zeros(3, np.float32)}
        path = write_gguf(tmp_path / "m.gguf", tiny_model("llama"), extra=extra)
        with pytest.raises(
            CheckpointError, match=r"the tensor 'blk\.0\.attn_sinks\.weight', which models of .* 'llama'"
        ):
            open_checkpoint(str(path))

    def test_an_lfm_2_with_a_window(self, tmp_path: Path) -> None:
        metadata = {"lfm2.attention.sliding_window": 16}
        path = write_gguf(tmp_path / "m.gguf", tiny_model("lfm2", **CONVOLUTIONS), metadata=metadata)
        with pytest.raises(CheckpointError, match=r"m\.gguf holds an LFM 2 with a sliding window, which has no graph"):
            open_checkpoint(str(path))

    @pytest.mark.parametrize(("key", "value", "sentence"), [
        ("ssm.inner_size", 49, "gives qwen35.ssm.inner_size as 49, and 2 heads have it together"),
        ("ssm.state_size", 8, "conv1d.weight' has shape [112, 4] where the configuration calls for [80, 1, 4]"),
        ("ssm.conv_kernel", 3, "conv1d.weight' has shape [112, 4] where the configuration calls for [112, 1, 3]"),
        ("ssm.group_count", 3, "2 value heads of linear attention and 3 key heads, which do not divide them"),
    ])  # fmt: skip
    def test_states_that_the_tensors_do_not_have(self, tmp_path: Path, key: str, value: int, sentence: str) -> None:
        path = write_gguf(tmp_path / "m.gguf", tiny_model("qwen3_5_text", **DELTA))
        overwrite(path, f"qwen35.{key}", value)
        with pytest.raises(EdgeError, match=re.escape(sentence)):
            open_checkpoint(str(path))

    def test_a_mixture_of_experts(self, tmp_path: Path) -> None:
        path = write_gguf(tmp_path / "m.gguf", tiny_model("llama"), metadata={"llama.expert_count": 8})
        with pytest.raises(CheckpointError, match="mixture of experts"):
            open_checkpoint(str(path))

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="There is no model"):
            open_checkpoint(str(tmp_path / "m.gguf"))


SMOLLM2 = catalog.local(catalog.resolve("smollm2-135m-instruct"))  # in the user's cache, before tests get their own


@pytest.mark.slow
@pytest.mark.skipif(SMOLLM2 is None or SMOLLM2.suffix != ".gguf", reason="the GGUF of SmolLM2 is not in the cache")
def test_smollm2_reads_as_transformers_reads_it() -> None:
    pytest.importorskip("accelerate", reason="transformers needs accelerate to read GGUF files")
    assert SMOLLM2 is not None
    checkpoint = open_checkpoint(str(SMOLLM2))
    model = AutoModelForCausalLM.from_pretrained(SMOLLM2.parent, gguf_file=SMOLLM2.name, dtype=torch.float32)
    reference = dict(model.named_parameters())
    assert set(reference) == set(checkpoint.names())
    for name, values in reference.items():
        assert np.array_equal(checkpoint.read(name), values.detach().numpy()), name
    blocks = checkpoint.blocks("model.embed_tokens.weight")
    assert blocks is not None
    assert bits(blocks.dequantize()) == bits(checkpoint.read("model.embed_tokens.weight"))
