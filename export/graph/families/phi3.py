"""Phi-3 and Phi-4 mini: Llama's layers with fused projections, partly rotated heads and long-context factors."""

from __future__ import annotations

from typing import Any

from edge.export.facts.family import GGUF, LlamaLike
from edge.export.facts.gguf_metadata import Metadata
from edge.export.graph.llama_like import llama_like

NAME = "phi3"
TRAITS = {"gguf": "phi3"}


def layers(config: Any) -> LlamaLike:
    return LlamaLike(attention=("qkv_proj", "o_proj"), gates=["gate_up_proj"])


def gguf(m: Metadata) -> dict[str, Any]:
    rope = m.rope()
    rotary = m.size("rope.dimension_count", m.head_dim)
    window = m.size("attention.sliding_window") if m.get("attention.sliding_window", int) else None  # 0: none
    extra: dict[str, Any] = {"sliding_window": window}
    original = m.size("rope.scaling.original_context_length", m.size("context_length"))
    long, short = m.vector("rope_factors_long.weight"), m.vector("rope_factors_short.weight")
    if long.size:
        for factors in (long, short):
            if factors.size != rotary // 2:
                reason = f"the file holds {factors.size} rope factors instead of {rotary // 2}"
                raise m.wrong("rope.dimension_count", rotary, reason)
        rope = {**rope, "rope_type": "longrope", "long_factor": long.tolist(), "short_factor": short.tolist()}
        rope["original_max_position_embeddings"] = original
        extra["original_max_position_embeddings"] = original
    return {**extra, "rope_parameters": {**rope, "partial_rotary_factor": rotary / m.head_dim}}


FAMILY = llama_like(layers, gguf=GGUF(gguf, names={"ffn_up": "mlp.gate_up_proj"}))
