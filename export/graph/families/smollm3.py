"""SmolLM3: Llama's layers, of which every fourth leaves positions unrotated (NoPE)."""

from __future__ import annotations

from typing import Any

from edge.export.checkpoint.gguf_config import Metadata
from edge.export.graph.families.base import GGUF, PRE_NORM, Family
from edge.export.graph.llama_like import llama_like
from edge.export.graph.stacks import Decoder
from edge.export.graph.weights import Weights

NAME = "smollm3"
TRAITS = {"gguf": "smollm3"}


def decoder(config: Any, weights: Weights, max_context: int) -> Decoder:
    return llama_like(
        config,
        weights,
        max_context,
        attention={"bias": config.attention_bias} | ({} if config.use_sliding_window else {"window": None}),
        mlp={"bias": config.mlp_bias},
        rope=lambda layer: "rope" if config.no_rope_layers[layer] else None,
    )


def gguf(m: Metadata) -> dict[str, Any]:
    # Every fourth layer has no rope: a constant in llama.cpp, which the file does not repeat.
    return {"rope_parameters": m.rope(), "no_rope_layer_interval": 4, **m.biases()}


FAMILY = Family(decoder, norms=PRE_NORM, gguf=GGUF(gguf, permuted=True))
