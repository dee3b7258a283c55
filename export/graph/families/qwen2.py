"""Qwen2 and Qwen2.5: Llama's layers with biases on query, key and value; upper layers may slide."""

from __future__ import annotations

from typing import Any

from edge.export.graph.blocks import QKVO
from edge.export.graph.families.base import GGUF, PRE_NORM, Family
from edge.export.graph.llama_like import llama_like
from edge.export.graph.stacks import Decoder
from edge.export.graph.weights import Weights

NAME = "qwen2"
TRAITS = {"gguf": "qwen2"}


def decoder(config: Any, weights: Weights, max_context: int) -> Decoder:
    return llama_like(config, weights, max_context, attention={"bias": QKVO[:3]})


FAMILY = Family(decoder, norms=PRE_NORM, gguf=GGUF(lambda m: {"rope_parameters": m.rope()}))
