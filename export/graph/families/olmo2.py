"""OLMo 2 and 3: Llama's layers with norms after the blocks and none before them, and a norm over all queries or keys.
In OLMo 3 most layers slide, and have a rotary table of their own."""

from __future__ import annotations

from typing import Any

from edge.export.facts.family import GGUF, LlamaLike, Norms
from edge.export.facts.gguf_metadata import Metadata
from edge.export.graph.llama_like import llama_like

NAMES = ("olmo2", "olmo3")
TRAITS = {"gguf": "olmo2"}


def layers(config: Any) -> LlamaLike:
    if "rope_type" in config.rope_parameters:
        return LlamaLike(bias=config.attention_bias, qk_norm="all")
    return LlamaLike(bias=config.attention_bias, qk_norm="all", rope=lambda layer: config.layer_types[layer])


def gguf(m: Metadata) -> dict[str, Any]:
    if m.get("attention.sliding_window", int) is None:
        return {"rope_parameters": m.rope()}
    full = m.rope()
    rope = {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": full["rope_theta"]}}
    return {"model_type": "olmo3", "rope_parameters": rope, **m.windows()}


FAMILY = llama_like(
    layers,
    norms=Norms(attention=None, gates=None, outputs=("post_attention_layernorm", "post_feedforward_layernorm")),
    gguf=GGUF(gguf),
)
