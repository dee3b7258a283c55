"""Granite 3 with experts: Granite's layers, and a feed-forward block next to the experts where one is shared."""

from __future__ import annotations

from typing import Any

from edge.export.facts.experts import Experts
from edge.export.facts.family import LlamaLike
from edge.export.graph.families.granite import multiplied
from edge.export.graph.llama_like import llama_like

NAMES = ("granitemoe", "granitemoeshared")
EXPERTS = "block_sparse_moe"


def layers(config: Any) -> LlamaLike:
    return multiplied(config, **mixture(config, getattr(config, "shared_intermediate_size", 0)))


def mixture(config: Any, shared: int) -> dict[str, Any]:
    """How layers with experts differ. shared: channels of the feed-forward block next to them; 0: there is none."""
    count = config.num_local_experts
    experts = Experts(count, config.num_experts_per_tok, config.intermediate_size, router="router") if count else None
    if not shared:
        return {"mlp": EXPERTS, "experts": lambda layer: experts}
    return {
        "mlp": "shared_mlp",
        "gates": ("input_linear",),
        "down": "output_linear",
        "wide": shared,
        "experts": lambda layer: experts,
        "expert_block": EXPERTS,
    }


FAMILY = llama_like(layers)
