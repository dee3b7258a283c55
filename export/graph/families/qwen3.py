"""Qwen3: Llama's layers with a norm over each query and key head; upper layers may slide."""

from __future__ import annotations

from typing import Any

from edge.export.facts.family import GGUF, LlamaLike
from edge.export.graph.llama_like import llama_like

NAME = "qwen3"
TRAITS = {"gguf": "qwen3"}


def layers(config: Any) -> LlamaLike:
    return LlamaLike(bias=config.attention_bias, qk_norm="head")


FAMILY = llama_like(layers, gguf=GGUF(lambda m: {"head_dim": m.head_dim, "rope_parameters": m.rope()}))
