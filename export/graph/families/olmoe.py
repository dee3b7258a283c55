"""OLMoE: Llama's layers with a norm over all queries or keys, and experts."""

from __future__ import annotations

from typing import Any

from edge.errors import ExportError
from edge.export.facts.experts import Experts
from edge.export.facts.family import GGUF, LlamaLike
from edge.export.facts.gguf_metadata import Metadata
from edge.export.graph.llama_like import llama_like

NAME = "olmoe"
TRAITS = {"gguf": "olmoe"}


def layers(config: Any) -> LlamaLike:
    if config.clip_qkv is not None:
        raise ExportError(
            f"The model clips queries, keys and values (clip_qkv is {config.clip_qkv}), which no graph here does."
        )
    experts = Experts(
        config.num_experts, config.num_experts_per_tok, config.intermediate_size, normalized=config.norm_topk_prob
    )
    return LlamaLike(bias=config.attention_bias, qk_norm="all", experts=lambda layer: experts)


def gguf(m: Metadata) -> dict[str, Any]:
    return {
        "rope_parameters": m.rope(),
        **m.experts("num_experts"),
        "norm_topk_prob": False,
        "clip_qkv": None,
    }


FAMILY = llama_like(layers, gguf=GGUF(gguf, experts=True))
