"""SmolLM3: Llama's layers, of which every fourth leaves positions unrotated (NoPE)."""

from __future__ import annotations

from transformers import SmolLM3Config
from transformers.models.smollm3.modeling_smollm3 import SmolLM3RotaryEmbedding

from edge.export.graph.blocks import Attention, Decoder, GatedMLP, Layer, ResidualNorm, heads_of, window_of
from edge.export.graph.linear import Embedding
from edge.export.graph.rope import rotary_table
from edge.export.graph.weights import Weights

MODEL_TYPES = ("smollm3",)


def decoder(config: SmolLM3Config, weights: Weights, max_context: int) -> Decoder:
    return Decoder(
        weights,
        Embedding(weights, "model.embed_tokens"),
        {"rope": rotary_table(weights, SmolLM3RotaryEmbedding(config), max_context)},
        [layer(config, weights, i) for i in range(config.num_hidden_layers)],
        ResidualNorm(weights, "model.norm", config.rms_norm_eps),
        tied=config.tie_word_embeddings,
    )


def layer(config: SmolLM3Config, weights: Weights, i: int) -> Layer:
    name = f"model.layers.{i}"
    return Layer(
        ResidualNorm(weights, f"{name}.input_layernorm", config.rms_norm_eps),
        Attention(
            weights,
            f"{name}.self_attn",
            i,
            heads_of(config),
            rope="rope" if config.no_rope_layers[i] else None,
            bias=config.attention_bias,
            output_bias=config.attention_bias,
            window=window_of(config, i) if config.use_sliding_window else None,
        ),
        ResidualNorm(weights, f"{name}.post_attention_layernorm", config.rms_norm_eps),
        GatedMLP(weights, f"{name}.mlp", config.hidden_act, bias=config.mlp_bias),
    )
