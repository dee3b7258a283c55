"""Qwen3-Next: Qwen 3.5's layers with experts and a shared one with a gate; the projections of linear attention are
fused."""

from __future__ import annotations

from typing import Any

from edge.errors import ExportError
from edge.export.facts.experts import Experts
from edge.export.facts.family import LlamaLike
from edge.export.facts.gguf_changes import Change
from edge.export.facts.gguf_metadata import Metadata
from edge.export.facts.mixers import GatedDelta
from edge.export.graph.families import qwen3_5
from edge.export.graph.families.qwen3_5 import in_all_layers, in_turns_with_attention, mixer_of

NAME = "qwen3_next"
TRAITS = {"gguf": "qwen3next"}
SHARED, SHARED_GATE = "shared_expert", "shared_expert_gate"


def layers(config: Any) -> LlamaLike:
    return with_experts(config, mixer_of(config, fused=True))


def with_experts(config: Any, mixer: GatedDelta) -> LlamaLike:
    """The layers of a model all of which have experts."""
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
        mixer,
        mlp=f"mlp.{SHARED}",
        wide=config.shared_expert_intermediate_size,
        experts=lambda layer: experts,
        expert_block="mlp",
        shared_gate=SHARED_GATE,
    )


def gguf(m: Metadata) -> dict[str, Any]:
    """No layer has a feed-forward block alone, whose size files may leave out."""
    shared = m.size("expert_shared_feed_forward_length")
    return {
        **qwen3_5.gguf(m),
        **m.experts("num_experts"),
        "intermediate_size": m.size("feed_forward_length", shared),
        "moe_intermediate_size": m.size("expert_feed_forward_length"),
        "shared_expert_intermediate_size": shared,
        "norm_topk_prob": True,  # as llama.cpp computes all of them
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
    }


def changes(config: Any) -> dict[str, Change]:
    """Files have the value heads in transformers' order."""
    mixer = mixer_of(config)
    of_block = {f"{mixer.name}.{name}": change for name, change in qwen3_5.vectors(mixer).items()}
    return in_all_layers(config, of_block | of_shared(config))


def of_shared(config: Any) -> dict[str, Change]:
    """The change of the shared expert's gate, of which files may have a vector."""
    return {f"mlp.{SHARED_GATE}.weight": Change(shape=(1, config.hidden_size))}


EXPERT_NAMES = {
    "ffn_gate_inp_shexp": f"mlp.{SHARED_GATE}",
    **{f"ffn_{part}_shexp": f"mlp.{SHARED}.{part}_proj" for part in ("gate", "up", "down")},
}
GGUF_NAMES = {
    **qwen3_5.DELTA_NAMES,
    **EXPERT_NAMES,
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_in": "linear_attn.in_proj_qkvz",  # in files of older converters, which left it in one
}
FAMILY = qwen3_5.family(layers, gguf, GGUF_NAMES, changes, experts=True)
