"""Qwen2 and Qwen2.5: Llama's layers with biases on query, key and value; upper layers may slide."""

from __future__ import annotations

from typing import Any

from transformers import Qwen2Config
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding

from edge.export.checkpoint.gguf_config import Metadata
from edge.export.graph.blocks import Attention, heads_of, window_of
from edge.export.graph.families.base import GGUF, PRE_NORM, Family
from edge.export.graph.llama_like import Decoder, llama_like
from edge.export.graph.weights import Weights

NAME = "qwen2"
TRAITS = {"gguf": "qwen2"}


def decoder(config: Qwen2Config, weights: Weights, max_context: int) -> Decoder:
    def attention(name: str, i: int) -> Attention:
        return Attention(weights, name, i, heads_of(config), rope="rope", bias=True, window=window_of(config, i))

    return llama_like(config, weights, max_context, Qwen2RotaryEmbedding(config), attention)


def gguf(m: Metadata) -> dict[str, Any]:
    return {"rope_parameters": m.rope()}


FAMILY = Family(decoder, norms=PRE_NORM, gguf=GGUF(gguf))
