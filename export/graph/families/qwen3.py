"""Qwen3: Llama's layers with a norm over each query and key head; upper layers may slide."""

from __future__ import annotations

from typing import Any

from edge.export.graph.families.base import GGUF, PRE_NORM, Family
from edge.export.graph.llama_like import head_norms, llama_like
from edge.export.graph.stacks import Decoder
from edge.export.graph.weights import Weights

NAME = "qwen3"
TRAITS = {"gguf": "qwen3"}


def decoder(config: Any, weights: Weights, max_context: int) -> Decoder:
    attention = {"bias": config.attention_bias, "qk_norm": head_norms(config, weights)}
    return llama_like(config, weights, max_context, attention=attention)


FAMILY = Family(decoder, norms=PRE_NORM, gguf=GGUF(lambda m: {"head_dim": m.head_dim, "rope_parameters": m.rope()}))
