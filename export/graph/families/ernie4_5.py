"""ERNIE 4.5, the dense models: Llama's layers, whose rotated pairs stand side by side."""

from __future__ import annotations

from typing import Any

from edge.export.facts.family import GGUF, LlamaLike
from edge.export.facts.gguf_metadata import Metadata
from edge.export.graph.llama_like import llama_like

NAME = "ernie4_5"
TRAITS = {"gguf": "ernie4_5"}


def layers(config: Any) -> LlamaLike:
    return LlamaLike(bias=config.use_bias, mlp_bias=config.use_bias, interleaved=True)


def gguf(m: Metadata) -> dict[str, Any]:
    return {"head_dim": m.head_dim, "rope_parameters": m.rope(), "use_bias": m.biases()["mlp_bias"]}


FAMILY = llama_like(layers, gguf=GGUF(gguf))  # llama.cpp rotates pairs side by side, too
