"""Llama 1 to 3, SmolLM2, TinyLlama: pre-norm layers, grouped heads, SiLU-gated feed-forward."""

from __future__ import annotations

from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from edge.export.graph.blocks import Attention, Decoder, GatedMLP, Layer, ResidualNorm, heads_of
from edge.export.graph.linear import Embedding
from edge.export.graph.rope import rotary_table
from edge.export.graph.weights import Weights

MODEL_TYPES = ("llama",)


def decoder(config: LlamaConfig, weights: Weights, max_context: int) -> Decoder:
    return Decoder(
        weights,
        Embedding(weights, "model.embed_tokens"),
        {"rope": rotary_table(weights, LlamaRotaryEmbedding(config), max_context)},
        [layer(config, weights, i) for i in range(config.num_hidden_layers)],
        ResidualNorm(weights, "model.norm", config.rms_norm_eps),
        tied=config.tie_word_embeddings,
    )


def layer(config: LlamaConfig, weights: Weights, i: int) -> Layer:
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
        ),
        ResidualNorm(weights, f"{name}.post_attention_layernorm", config.rms_norm_eps),
        GatedMLP(weights, f"{name}.mlp", config.hidden_act, bias=config.mlp_bias),
    )
