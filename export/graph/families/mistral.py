"""Mistral: Llama's layers without biases, all of them with the same sliding window where there is one."""

from __future__ import annotations

from typing import Any

from edge.export.graph.families.base import PRE_NORM, Family
from edge.export.graph.llama_like import llama_like
from edge.export.graph.stacks import Decoder
from edge.export.graph.weights import Weights

NAME = "mistral"  # GGUF files of it are Llama's


def decoder(config: Any, weights: Weights, max_context: int) -> Decoder:
    return llama_like(config, weights, max_context)


FAMILY = Family(decoder, norms=PRE_NORM)
