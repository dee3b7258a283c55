"""Llama 1 to 3, SmolLM2, TinyLlama: pre-norm layers, grouped heads, SiLU-gated feed-forward."""

from __future__ import annotations

from typing import Any

from edge.export.graph.families.base import GGUF, PRE_NORM, Family
from edge.export.graph.llama_like import llama_like
from edge.export.graph.stacks import Decoder
from edge.export.graph.weights import Weights

NAME = "llama"
TRAITS = {"gguf": "llama"}


def decoder(config: Any, weights: Weights, max_context: int) -> Decoder:
    attention, mlp = {"bias": config.attention_bias}, {"bias": config.mlp_bias}
    return llama_like(config, weights, max_context, attention=attention, mlp=mlp)


FAMILY = Family(
    decoder,
    norms=PRE_NORM,
    gguf=GGUF(lambda m: {"head_dim": m.head_dim, "rope_parameters": m.rope(), **m.biases()}, permuted=True),
)
