"""Qwen3-Next, and Qwen 3.5 with experts (text): Qwen 3.5's layers with experts, and a shared one with a gate."""

from __future__ import annotations

from typing import Any

from edge.errors import ExportError
from edge.export.facts.experts import Experts
from edge.export.facts.family import LlamaLike
from edge.export.graph.families.qwen3_5 import NORMS, in_turns_with_attention, mixer_of
from edge.export.graph.llama_like import llama_like

NAMES = ("qwen3_next", "qwen3_5_moe_text")


def layers(config: Any) -> LlamaLike:
    """Of the two Qwen3-Next alone has projections of linear attention that are fused."""
    if getattr(config, "mlp_only_layers", None) or getattr(config, "decoder_sparse_step", 1) != 1:
        raise ExportError(
            "The model has layers without experts (mlp_only_layers, decoder_sparse_step), which no graph of its family "
            "has."
        )
    experts = Experts(
        config.num_experts,
        config.num_experts_per_tok,
        config.moe_intermediate_size,
        normalized=getattr(config, "norm_topk_prob", True),
    )
    return in_turns_with_attention(
        config,
        mixer_of(config, fused=config.model_type == "qwen3_next"),
        mlp="mlp.shared_expert",
        wide=config.shared_expert_intermediate_size,
        experts=lambda layer: experts,
        expert_block="mlp",
        shared_gate="shared_expert_gate",
    )


FAMILY = llama_like(layers, norms=NORMS)
