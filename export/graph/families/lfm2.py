"""LFM 2 and 2.5: most layers have a short convolution in place of attention."""

from __future__ import annotations

from typing import Any

from edge.errors import CheckpointError
from edge.export.facts.family import GGUF, LlamaLike, Norms
from edge.export.facts.gguf_changes import Change
from edge.export.facts.gguf_metadata import Metadata
from edge.export.facts.mixers import ShortConvolution
from edge.export.graph.llama_like import llama_like

NAME = "lfm2"
TRAITS = {"gguf": "lfm2"}
CONVOLUTION = "conv"


def layers(config: Any) -> LlamaLike:
    return convolutional(config, wide=_wide(config))


def convolutional(config: Any, **others: Any) -> LlamaLike:
    """The layers of LFM 2. others: how those of a model with experts differ."""
    mixer = ShortConvolution(config.hidden_size, config.conv_L_cache, config.conv_bias)
    return LlamaLike(
        attention=("q_proj", "k_proj", "v_proj", "out_proj"),
        gates=("w1", "w3"),
        down="w2",
        mlp="feed_forward",
        qk_norm="head",
        qk_names=("q_layernorm", "k_layernorm"),
        activation="silu",
        mixer=lambda layer: mixer if config.layer_types[layer] == CONVOLUTION else None,
        **others,
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


def gguf(m: Metadata) -> dict[str, Any]:
    if m.get("attention.sliding_window", int):
        raise CheckpointError(f"{m.path} holds an LFM 2 with a sliding window, which has no graph here.")
    layers = m.size("block_count")
    return {
        "layer_types": ["full_attention" if attends else CONVOLUTION for attends in m.attends(layers)],
        "conv_L_cache": m.size("shortconv.l_cache", least=2),
        "conv_bias": False,
        "block_auto_adjust_ff_dim": False,
        "rope_parameters": m.rope(default_base=1_000_000.0),
    }


def changes(config: Any) -> dict[str, Change]:
    taps = Change(shape=(config.hidden_size, 1, config.conv_L_cache))
    return {f"model.layers.{i}.conv.conv.weight": taps for i in range(config.num_hidden_layers)}


GGUF_NAMES = {
    "attn_norm": "operator_norm",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.conv": "conv.conv",
    "shortconv.out_proj": "conv.out_proj",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
}
NORMS = Norms("operator_norm", "ffn_norm", final="embedding_norm", eps="norm_eps")
FAMILY = llama_like(
    layers,
    norms=NORMS,
    gguf=GGUF(gguf, names=GGUF_NAMES, changes=changes),
)
