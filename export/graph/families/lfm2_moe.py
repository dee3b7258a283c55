"""LFM 2 with experts: the layers of LFM 2, all but the first few with experts that sigmoids score."""

from __future__ import annotations

from typing import Any

from edge.export.facts.experts import Experts
from edge.export.facts.family import LlamaLike
from edge.export.graph.families.lfm2 import NORMS, convolutional
from edge.export.graph.llama_like import llama_like

NAME = "lfm2_moe"


def layers(config: Any) -> LlamaLike:
    experts = Experts(
        config.num_experts,
        config.num_experts_per_tok,
        config.moe_intermediate_size,
        sigmoids=True,
        normalized=config.norm_topk_prob,
        bias="expert_bias" if config.use_expert_bias else None,
        scale=config.routed_scaling_factor,
    )
    return convolutional(config, experts=lambda layer: None if layer < config.num_dense_layers else experts)


FAMILY = llama_like(layers, norms=NORMS)
