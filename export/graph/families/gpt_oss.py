"""gpt-oss: experts in every layer, with biases and a clamped gate; heads with sinks; every second layer slides."""

from __future__ import annotations

from typing import Any

from edge.export.facts.experts import Clamped, Experts
from edge.export.facts.family import GGUF, SINKS, LlamaLike
from edge.export.facts.gguf_metadata import Metadata
from edge.export.graph.llama_like import llama_like

NAME = "gpt_oss"
TRAITS = {"gguf": "gpt-oss"}
ALPHA, LIMIT = 1.702, 7.0  # where a file does not say


def layers(config: Any) -> LlamaLike:
    experts = Experts(
        config.num_local_experts,
        config.num_experts_per_tok,
        config.intermediate_size,
        router="router",
        biased=True,
        clamped=Clamped(config.swiglu_alpha, config.swiglu_limit),
        turned=True,
    )
    return LlamaLike(bias=config.attention_bias, sinks=True, experts=lambda layer: experts)


def gguf(m: Metadata) -> dict[str, Any]:
    return {
        "head_dim": m.head_dim,
        "attention_bias": True,
        **m.windows(period=2),
        "intermediate_size": m.size("expert_feed_forward_length"),
        "rope_parameters": {**m.rope(), "truncate": False},
        **m.experts(),
        "swiglu_alpha": ALPHA,
        "swiglu_limit": LIMIT,
    }


FAMILY = llama_like(
    layers,
    gguf=GGUF(gguf, names={"ffn_gate_inp": "mlp.router"}, bare={"attn_sinks": f"self_attn.{SINKS}"}, experts=True),
)
