"""EXAONE 4: norms after the blocks and of each query and key head; where some layers slide, the others have no rope."""

from __future__ import annotations

from typing import Any

from edge.export.facts.family import GGUF, LlamaLike, Norms
from edge.export.facts.gguf_metadata import Metadata
from edge.export.graph.llama_like import llama_like

NAME = "exaone4"
TRAITS = {"gguf": "exaone4"}


def layers(config: Any) -> LlamaLike:
    def rope(layer: int) -> str | None:
        everywhere = config.sliding_window is None
        return "rope" if everywhere or config.layer_types[layer] == "sliding_attention" else None

    return LlamaLike(qk_norm="head", rope=rope)


def gguf(m: Metadata) -> dict[str, Any]:
    return {"head_dim": m.head_dim, "rope_parameters": m.rope(), **m.windows()}


FAMILY = llama_like(
    layers,
    norms=Norms(attention=None, gates=None, outputs=("post_attention_layernorm", "post_feedforward_layernorm")),
    gguf=GGUF(gguf),
)
