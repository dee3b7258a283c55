"""Qwen 3.5 text: linear attention by the gated delta rule, and in every fourth layer attention with an output gate."""

from __future__ import annotations

from typing import Any

from edge.errors import ExportError
from edge.export.facts.family import LlamaLike, Norms
from edge.export.facts.mixers import GatedDelta
from edge.export.graph.llama_like import llama_like

NAME = "qwen3_5_text"
LINEAR = "linear_attention"


def layers(config: Any) -> LlamaLike:
    if config.linear_num_value_heads % config.linear_num_key_heads:
        raise ExportError(
            f"The model has {config.linear_num_value_heads} value heads of linear attention and "
            f"{config.linear_num_key_heads} key heads, which do not divide them."
        )
    mixer = GatedDelta(
        config.hidden_size,
        keys=config.linear_num_key_heads,
        values=config.linear_num_value_heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.linear_value_head_dim,
        taps=config.linear_conv_kernel_dim,
        eps=config.rms_norm_eps,
    )
    return LlamaLike(
        bias=config.attention_bias,
        qk_norm="head",
        output_gate=True,
        mixer=lambda layer: mixer if config.layer_types[layer] == LINEAR else None,
    )


FAMILY = llama_like(layers, norms=Norms(offset=1.0))
