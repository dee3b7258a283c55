"""Qwen3's mixtures of experts: Qwen3's layers, most of which have experts; upper layers may slide."""

from __future__ import annotations

from typing import Any

from edge.export.facts.experts import Experts
from edge.export.facts.family import GGUF, LlamaLike
from edge.export.facts.gguf_metadata import Metadata
from edge.export.graph.llama_like import llama_like

NAME = "qwen3_moe"
TRAITS = {"gguf": "qwen3moe"}


def layers(config: Any) -> LlamaLike:
    experts = Experts(
        config.num_local_experts,
        config.num_experts_per_tok,
        config.moe_intermediate_size,
        normalized=config.norm_topk_prob,
    )

    def of_layer(layer: int) -> Experts | None:
        dense = layer in config.mlp_only_layers or (layer + 1) % config.decoder_sparse_step
        return None if dense or not experts.count else experts

    return LlamaLike(bias=config.attention_bias, qk_norm="head", experts=of_layer)


def gguf(m: Metadata) -> dict[str, Any]:
    return {
        "head_dim": m.head_dim,
        "rope_parameters": m.rope(),
        **m.experts(),
        "moe_intermediate_size": m.size("expert_feed_forward_length"),
        "norm_topk_prob": True,  # as llama.cpp computes all of them
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
    }


FAMILY = llama_like(layers, gguf=GGUF(gguf, experts=True))
