"""Phi-3 and Phi-4 mini: Llama's layers with fused projections, partly rotated heads and long-context factors."""

from __future__ import annotations

from typing import Any

from edge.export.checkpoint.gguf_config import Metadata
from edge.export.graph.families.base import GGUF, PRE_NORM, Family
from edge.export.graph.llama_like import llama_like
from edge.export.graph.stacks import Decoder
from edge.export.graph.weights import Weights

NAME = "phi3"
TRAITS = {"gguf": "phi3"}


def decoder(config: Any, weights: Weights, max_context: int) -> Decoder:
    attention, mlp = {"names": ("qkv_proj", "o_proj")}, {"projections": ["gate_up_proj"]}
    return llama_like(config, weights, max_context, attention=attention, mlp=mlp)


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


FAMILY = Family(decoder, norms=PRE_NORM, gguf=GGUF(gguf, names={"ffn_up": "mlp.gate_up_proj"}))
