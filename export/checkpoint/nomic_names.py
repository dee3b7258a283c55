"""Nomic BERT as its makers' own code writes it: names of GPT-2's in config.json, and one matrix for query, key and
value; transformers has names of Llama's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edge.errors import CheckpointError
from edge.export.checkpoint.stored import Stored, Tensor

MODEL_TYPE = "nomic_bert"
TRAINED = 2048  # tokens of a text, up to which positions are as they were trained
CONFIG = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_inner": "intermediate_size",
    "layer_norm_epsilon": "layer_norm_eps",
}
# What all published models have, and transformers' class does not name.
FIXED: dict[str, tuple[Any, ...]] = {
    "activation_function": ("swiglu",),
    **dict.fromkeys(("prenorm", "parallel_block", "use_rms_norm", "rotary_emb_interleaved", "causal"), (False,)),
    **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), (False,)),
    "rotary_emb_fraction": (1.0, 1),
    "rotary_emb_scale_base": (None,),
}
TENSORS = (
    (r"^(bert\.)?encoder\.layers\.", "layers."),
    (r"^(bert\.)?emb_ln\.", "embeddings.LayerNorm."),
    (r"^bert\.embeddings\.", "embeddings."),
    (r"\.attn\.out_proj\.", ".self_attn.o_proj."),
    (r"\.fc11\.", ".up_proj."),
    (r"\.fc12\.", ".gate_proj."),
    (r"\.fc2\.", ".down_proj."),
    (r"\.norm1\.", ".post_attention_layernorm."),
    (r"\.norm2\.", ".post_mlp_layernorm."),
)
PACKED = ".attn.Wqkv.weight"


def config_of(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """A config.json with transformers' names; one that has them already is returned as it is.

    Raises:
        CheckpointError: it is of a model with other layers.
    """
    if raw.get("model_type") != MODEL_TYPE or "n_embd" not in raw:
        return raw
    for name, values in FIXED.items():
        if name in raw and raw[name] not in values:
            raise CheckpointError(
                f"{where} sets {name} to {str(raw[name])[:60]!r}, which no model of {MODEL_TYPE} has here."
            )
    left_out = {*CONFIG, *FIXED, "n_positions", "rotary_emb_base", "max_trained_positions", "rotary_scaling_factor"}
    named = {theirs: raw[ours] for ours, theirs in CONFIG.items() if ours in raw}
    trained, positions = raw.get("max_trained_positions") or TRAINED, raw.get("n_positions") or TRAINED
    if not all(isinstance(length, int) for length in (trained, positions)):
        raise CheckpointError(f"{where} has a longest text that is no whole number; fetch the checkpoint again.")
    rope = {"rope_type": "default", "rope_theta": raw.get("rotary_emb_base", 10_000)}
    kept = {name: value for name, value in raw.items() if name not in left_out}
    return kept | named | {"max_position_embeddings": min(trained, positions), "rope_parameters": rope}


def tensors_of(config: Mapping[str, Any], found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by transformers' names. config: config.json's content."""
    if config.get("model_type") != MODEL_TYPE:
        return dict(found)
    named: dict[str, Tensor] = {}
    for stored, tensor in found.items():
        name = stored
        for pattern, theirs in TENSORS:
            name = re.sub(pattern, theirs, name)
        if name.endswith(PACKED) and isinstance(tensor, Stored) and len(tensor.shape) == 2:
            rows = tensor.shape[0] // 3
            for i, part in enumerate("qkv"):
                cut = replace(tensor, tensor=tensor.tensor[i * rows : (i + 1) * rows])
                named[f"{name.removesuffix(PACKED)}.self_attn.{part}_proj.weight"] = cut
        else:
            named[name] = tensor
    return named
