"""Cohere 2 (Command R7B, Command A): attention and feed-forward read one layer norm; three layers of four slide and
rotate pairs that stand side by side, the others rotate nothing."""

from __future__ import annotations

from typing import Any

from edge.export.facts.family import GGUF, LlamaLike, Norms
from edge.export.facts.gguf_metadata import Metadata
from edge.export.graph.llama_like import llama_like

NAME = "cohere2"
TRAITS = {"gguf": "cohere2"}
PERIOD = 4  # of layers that slide: a constant in llama.cpp, which files do not repeat


def layers(config: Any) -> LlamaLike:
    return LlamaLike(
        bias=config.attention_bias,
        interleaved=True,
        parallel=True,
        rope=lambda layer: "rope" if config.layer_types[layer] == "sliding_attention" else None,
        head_scale=config.logit_scale,
    )


def gguf(m: Metadata) -> dict[str, Any]:
    return {
        "head_dim": m.head_dim,
        "rope_parameters": m.rope(),
        "logit_scale": m.number("logit_scale", 1.0),
        **m.windows(PERIOD),
    }


FAMILY = llama_like(layers, norms=Norms(gates=None, eps="layer_norm_eps", centred=True), gguf=GGUF(gguf))
