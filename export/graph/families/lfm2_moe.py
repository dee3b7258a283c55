"""LFM 2 with experts: the layers of LFM 2, all but the first few with experts that sigmoids score."""

from __future__ import annotations

from typing import Any

from edge.export.facts.experts import Experts, gguf_stacks
from edge.export.facts.family import GGUF, LlamaLike
from edge.export.facts.gguf_metadata import Metadata
from edge.export.graph.families import lfm2
from edge.export.graph.llama_like import llama_like

NAME = "lfm2_moe"
TRAITS = {"gguf": "lfm2moe"}
SIGMOIDS = 2  # as files number what makes scores weights


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
    return lfm2.convolutional(config, experts=lambda layer: None if layer < config.num_dense_layers else experts)


def gguf(m: Metadata) -> dict[str, Any]:
    if (kind := m.size("expert_gating_func")) != SIGMOIDS:
        raise m.wrong("expert_gating_func", kind, f"the experts of an LFM 2 are scored by sigmoids ({SIGMOIDS})")
    layers, dense = m.size("block_count"), m.get("leading_dense_block_count", int) or 0
    return {
        **lfm2.gguf(m),
        **m.experts("num_experts"),
        "moe_intermediate_size": m.size("expert_feed_forward_length"),
        "num_dense_layers": dense,
        "use_expert_bias": m.has(f"blk.{min(max(dense, 0), layers - 1)}.exp_probs_b.bias"),
        "norm_topk_prob": True,  # as llama.cpp computes all of them
        "routed_scaling_factor": m.number("expert_weights_scale", 1.0),
    }


GGUF_NAMES = {
    **lfm2.GGUF_NAMES,
    "ffn_gate_inp": "feed_forward.gate",
    **gguf_stacks("feed_forward"),
}
FAMILY = llama_like(
    layers,
    norms=lfm2.NORMS,
    gguf=GGUF(
        gguf,
        names=GGUF_NAMES,
        bare={"exp_probs_b": "feed_forward.expert_bias"},
        changes=lfm2.changes,
        experts=True,
    ),
)
