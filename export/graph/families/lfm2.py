"""LFM 2 and 2.5: most layers have a short convolution in place of attention."""

from __future__ import annotations

from typing import Any

from edge.export.facts.family import LlamaLike, Norms
from edge.export.facts.mixers import ShortConvolution
from edge.export.graph.llama_like import llama_like

NAME = "lfm2"
CONVOLUTION = "conv"


def layers(config: Any) -> LlamaLike:
    mixer = ShortConvolution(config.hidden_size, config.conv_L_cache, config.conv_bias)
    return LlamaLike(
        attention=("q_proj", "k_proj", "v_proj", "out_proj"),
        gates=("w1", "w3"),
        down="w2",
        mlp="feed_forward",
        wide=_wide(config),
        qk_norm="head",
        qk_names=("q_layernorm", "k_layernorm"),
        activation="silu",
        mixer=lambda layer: mixer if config.layer_types[layer] == CONVOLUTION else None,
    )


def _wide(config: Any) -> int:
    """The width of the feed-forward block, which the configuration may state before it is made smaller."""
    wide: int = config.intermediate_size
    if not config.block_auto_adjust_ff_dim:
        return wide
    wide = int(2 * wide / 3)
    if config.block_ffn_dim_multiplier is None:
        return wide
    multiple = config.block_multiple_of
    return -(-int(config.block_ffn_dim_multiplier * wide) // multiple) * multiple


FAMILY = llama_like(layers, norms=Norms("operator_norm", "ffn_norm", final="embedding_norm", eps="norm_eps"))
