"""Qwen2 and Qwen2.5: Llama's layers with biases on query, key and value; upper layers may slide."""

from __future__ import annotations

from typing import Any

from edge.export.facts.family import GGUF, QKVO, LlamaLike
from edge.export.graph.llama_like import llama_like

NAME = "qwen2"
TRAITS = {"gguf": "qwen2"}


def layers(config: Any) -> LlamaLike:
    return LlamaLike(bias=QKVO[:3])


FAMILY = llama_like(layers, gguf=GGUF(lambda m: {"rope_parameters": m.rope()}))
