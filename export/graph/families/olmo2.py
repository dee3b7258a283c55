"""OLMo 2: Llama's layers with norms after the blocks and none before them, and a norm over all queries or keys."""

from __future__ import annotations

from typing import Any

from edge.export.facts.family import GGUF, LlamaLike, Norms
from edge.export.graph.llama_like import llama_like

NAME = "olmo2"
TRAITS = {"gguf": "olmo2"}


def layers(config: Any) -> LlamaLike:
    return LlamaLike(bias=config.attention_bias, qk_norm="all")


FAMILY = llama_like(
    layers,
    norms=Norms(attention=None, gates=None, outputs=("post_attention_layernorm", "post_feedforward_layernorm")),
    gguf=GGUF(lambda m: {"rope_parameters": m.rope()}),
)
