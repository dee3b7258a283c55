"""Granite 3: Llama's layers with multipliers of embeddings, scores, what blocks add, and logits."""

from __future__ import annotations

from typing import Any

from edge.errors import CheckpointError
from edge.export.facts.family import GGUF, LlamaLike
from edge.export.facts.gguf_metadata import Metadata
from edge.export.graph.llama_like import llama_like

NAME = "granite"
TRAITS = {"gguf": "granite"}


def layers(config: Any) -> LlamaLike:
    return multiplied(config, mlp_bias=config.mlp_bias)


def multiplied(config: Any, **others: Any) -> LlamaLike:
    """Granite's layers. others: how those of a model with experts or states differ."""
    return LlamaLike(
        bias=config.attention_bias,
        scale=config.attention_multiplier,
        embedding_scale=config.embedding_multiplier,
        residual_scale=config.residual_multiplier,
        head_scale=1 / config.logits_scaling,
        **others,
    )


def gguf(m: Metadata) -> dict[str, Any]:
    if m.get("rope.scaling.finetuned", bool) is False:  # which is how files say that nothing is rotated
        raise CheckpointError(f"{m.path} holds a Granite without rotations, which has no graph here.")
    return multipliers(m) | m.biases()


def multipliers(m: Metadata) -> dict[str, Any]:
    # Without a key llama.cpp multiplies by nothing, and scores by what is usual.
    return {
        "rope_parameters": m.rope(),
        "embedding_multiplier": m.number("embedding_scale", 1.0),
        "attention_multiplier": m.number("attention.scale", m.head_dim**-0.5),
        "residual_multiplier": m.number("residual_scale", 1.0),
        "logits_scaling": m.number("logit_scale", 1.0),
    }


FAMILY = llama_like(layers, gguf=GGUF(gguf, permuted=True))
