"""Granite 3: Llama's layers with multipliers of embeddings, scores, what blocks add, and logits."""

from __future__ import annotations

from typing import Any

from edge.export.checkpoint.gguf_config import Metadata
from edge.export.graph.families.base import GGUF, PRE_NORM, Family
from edge.export.graph.llama_like import llama_like
from edge.export.graph.stacks import Decoder
from edge.export.graph.weights import Weights

NAME = "granite"
TRAITS = {"gguf": "granite"}


def decoder(config: Any, weights: Weights, max_context: int) -> Decoder:
    return llama_like(
        config,
        weights,
        max_context,
        attention={"bias": config.attention_bias, "scale": config.attention_multiplier},
        mlp={"bias": config.mlp_bias},
        embedding_scale=config.embedding_multiplier,
        residual_scale=config.residual_multiplier,
        head_scale=head_scale(config),
    )


def head_scale(config: Any) -> float:
    return 1 / config.logits_scaling


def gguf(m: Metadata) -> dict[str, Any]:
    # Without a key llama.cpp multiplies by nothing, and scores by what is usual.
    return {
        "rope_parameters": m.rope(),
        "embedding_multiplier": m.number("embedding_scale", 1.0),
        "attention_multiplier": m.number("attention.scale", m.head_dim**-0.5),
        "residual_multiplier": m.number("residual_scale", 1.0),
        "logits_scaling": m.number("logit_scale", 1.0),
        **m.biases(),
    }


FAMILY = Family(decoder, norms=PRE_NORM, head_scale=head_scale, gguf=GGUF(gguf, permuted=True))
