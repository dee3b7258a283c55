"""Qwen3: Llama's layers with a norm over each query and key head; upper layers may slide."""

from __future__ import annotations

from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from edge.export.graph.blocks import Attention, Decoder, GatedMLP, Layer, ResidualNorm, heads_of, window_of
from edge.export.graph.linear import Embedding
from edge.export.graph.rope import rotary_table
from edge.export.graph.weights import Weights

MODEL_TYPES = ("qwen3",)


def decoder(config: Qwen3Config, weights: Weights, max_context: int) -> Decoder:
    return Decoder(
        weights,
        Embedding(weights, "model.embed_tokens"),
        {"rope": rotary_table(weights, Qwen3RotaryEmbedding(config), max_context)},
        [layer(config, weights, i) for i in range(config.num_hidden_layers)],
        ResidualNorm(weights, "model.norm", config.rms_norm_eps),
        tied=config.tie_word_embeddings,
    )


def layer(config: Qwen3Config, weights: Weights, i: int) -> Layer:
    name = f"model.layers.{i}"
    return Layer(
        ResidualNorm(weights, f"{name}.input_layernorm", config.rms_norm_eps),
        Attention(
            weights,
            f"{name}.self_attn",
            i,
            heads_of(config),
            rope="rope",
            bias=config.attention_bias,
            output_bias=config.attention_bias,
            window=window_of(config, i),
            qk_norm=config.rms_norm_eps,
        ),
        ResidualNorm(weights, f"{name}.post_attention_layernorm", config.rms_norm_eps),
        GatedMLP(weights, f"{name}.mlp", config.hidden_act),
    )
