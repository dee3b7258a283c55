"""Mistral: Llama's layers without biases, all of them with the same sliding window where there is one."""

from __future__ import annotations

from typing import Any

from edge.export.facts.family import LlamaLike
from edge.export.graph.llama_like import llama_like

NAME = "mistral"  # GGUF files of it are Llama's


def layers(config: Any) -> LlamaLike:
    return LlamaLike()


FAMILY = llama_like(layers)
