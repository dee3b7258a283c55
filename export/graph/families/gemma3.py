"""Gemma 3 text: sliding and full layers with rotary tables of their own, scaled embeddings, four norms, GeGLU."""

from __future__ import annotations

from typing import Any

from edge.export.facts.family import GGUF, LlamaLike, Norms
from edge.export.facts.gguf_metadata import Metadata
from edge.export.graph.llama_like import llama_like

NAME = "gemma3_text"
TRAITS = {"gguf": "gemma3"}


def layers(config: Any) -> LlamaLike:
    both_ways = bool(config.use_bidirectional_attention)
    return LlamaLike(
        bias=config.attention_bias,
        qk_norm="head",
        scale=config.query_pre_attn_scalar**-0.5,
        rope=lambda layer: config.layer_types[layer],
        activation=config.hidden_activation,
        embedding_scale=config.hidden_size**0.5,
        softcap=config.final_logit_softcapping,
        both_ways=both_ways,
    )


def gguf(m: Metadata) -> dict[str, Any]:
    full = m.rope(default_base=1_000_000.0)
    heads, layers = m.size("attention.head_count"), m.size("block_count")
    return {
        "head_dim": m.head_dim,
        # Only the 27B model (62 layers) scales queries by hidden/heads: a constant in llama.cpp too.
        "query_pre_attn_scalar": m.size("embedding_length") // heads if layers == 62 else m.head_dim,
        "hidden_activation": "gelu_pytorch_tanh",
        "final_logit_softcapping": None,
        "use_bidirectional_attention": False,
        "sliding_window": m.size("attention.sliding_window"),
        "layer_types": ["sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(layers)],
        "rope_parameters": {
            "full_attention": full,
            "sliding_attention": {"rope_type": "default", "rope_theta": m.number("rope.freq_base_swa", 10_000.0)},
        },
    }


NORMS = Norms(
    gates="pre_feedforward_layernorm",
    outputs=("post_attention_layernorm", "post_feedforward_layernorm"),
    offset=1.0,  # the checkpoint's norm weights are stored minus one
)
GGUF_NAMES = {"ffn_norm": "pre_feedforward_layernorm"}
FAMILY = llama_like(layers, norms=NORMS, gguf=GGUF(gguf, names=GGUF_NAMES))
