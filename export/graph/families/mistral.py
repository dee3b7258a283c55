"""Mistral: Llama's layers without biases, all of them with the same sliding window where there is one."""

from __future__ import annotations

from transformers import MistralConfig
from transformers.models.mistral.modeling_mistral import MistralRotaryEmbedding

from edge.export.graph.blocks import Attention, Decoder, GatedMLP, Layer, ResidualNorm, heads_of
from edge.export.graph.linear import Embedding
from edge.export.graph.rope import rotary_table
from edge.export.graph.weights import Weights

MODEL_TYPES = ("mistral",)


def decoder(config: MistralConfig, weights: Weights, max_context: int) -> Decoder:
    return Decoder(
        weights,
        Embedding(weights, "model.embed_tokens"),
        {"rope": rotary_table(weights, MistralRotaryEmbedding(config), max_context)},
        [layer(config, weights, i) for i in range(config.num_hidden_layers)],
        ResidualNorm(weights, "model.norm", config.rms_norm_eps),
        tied=config.tie_word_embeddings,
    )


def layer(config: MistralConfig, weights: Weights, i: int) -> Layer:
    name = f"model.layers.{i}"
    return Layer(
        ResidualNorm(weights, f"{name}.input_layernorm", config.rms_norm_eps),
        Attention(weights, f"{name}.self_attn", i, heads_of(config), rope="rope", window=config.sliding_window),
        ResidualNorm(weights, f"{name}.post_attention_layernorm", config.rms_norm_eps),
        GatedMLP(weights, f"{name}.mlp", config.hidden_act),
    )
