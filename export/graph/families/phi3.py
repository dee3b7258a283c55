"""Phi-3 and Phi-4 mini: Llama's layers with fused projections, partly rotated heads and long-context factors."""

from __future__ import annotations

from transformers import Phi3Config
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from edge.export.graph.blocks import Attention, Decoder, GatedMLP, Layer, ResidualNorm, heads_of
from edge.export.graph.linear import Embedding
from edge.export.graph.rope import rotary_table
from edge.export.graph.weights import Weights

MODEL_TYPES = ("phi3",)


def decoder(config: Phi3Config, weights: Weights, max_context: int) -> Decoder:
    return Decoder(
        weights,
        Embedding(weights, "model.embed_tokens"),
        {"rope": rotary_table(weights, Phi3RotaryEmbedding(config), max_context)},
        [layer(config, weights, i) for i in range(config.num_hidden_layers)],
        ResidualNorm(weights, "model.norm", config.rms_norm_eps),
        tied=config.tie_word_embeddings,
    )


def layer(config: Phi3Config, weights: Weights, i: int) -> Layer:
    name = f"model.layers.{i}"
    return Layer(
        ResidualNorm(weights, f"{name}.input_layernorm", config.rms_norm_eps),
        Attention(
            weights,
            f"{name}.self_attn",
            i,
            heads_of(config),
            rope="rope",
            projections=["qkv_proj"],
            window=config.sliding_window,
        ),
        ResidualNorm(weights, f"{name}.post_attention_layernorm", config.rms_norm_eps),
        GatedMLP(weights, f"{name}.mlp", config.hidden_act, projections=["gate_up_proj"]),
    )
