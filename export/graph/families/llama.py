"""Llama 1 to 3, SmolLM2, TinyLlama: pre-norm layers, grouped heads, SiLU-gated feed-forward."""

from __future__ import annotations

from typing import Any

from edge.export.facts.family import GGUF, LlamaLike
from edge.export.graph.llama_like import llama_like

NAME = "llama"
TRAITS = {"gguf": "llama"}


def layers(config: Any) -> LlamaLike:
    return LlamaLike(bias=config.attention_bias, mlp_bias=config.mlp_bias)


FAMILY = llama_like(
    layers, gguf=GGUF(lambda m: {"head_dim": m.head_dim, "rope_parameters": m.rope(), **m.biases()}, permuted=True)
)
