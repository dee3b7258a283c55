"""Qwen3: Llama's layers with a norm over each query and key head; upper layers may slide."""

from __future__ import annotations

from typing import Any

from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from edge.export.checkpoint.gguf_config import Metadata
from edge.export.graph.blocks import Attention, head_norms, heads_of, window_of
from edge.export.graph.families.base import GGUF, PRE_NORM, Family
from edge.export.graph.llama_like import Decoder, llama_like
from edge.export.graph.weights import Weights

NAME = "qwen3"
TRAITS = {"gguf": "qwen3"}


def decoder(config: Qwen3Config, weights: Weights, max_context: int) -> Decoder:
    heads = heads_of(config)

    def attention(name: str, i: int) -> Attention:
        return Attention(
            weights,
            name,
            i,
            heads,
            rope="rope",
            bias=config.attention_bias,
            output_bias=config.attention_bias,
            window=window_of(config, i),
            qk_norm=head_norms(weights, heads.dim, config.rms_norm_eps),
        )

    return llama_like(config, weights, max_context, Qwen3RotaryEmbedding(config), attention)


def gguf(m: Metadata) -> dict[str, Any]:
    return {"head_dim": m.head_dim, "rope_parameters": m.rope()}


FAMILY = Family(decoder, norms=PRE_NORM, gguf=GGUF(gguf))
