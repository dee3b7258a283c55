"""SmolLM3: Llama's layers, of which every fourth leaves positions unrotated (NoPE)."""

from __future__ import annotations

from typing import Any

from edge.export.facts.family import GGUF, LlamaLike
from edge.export.facts.gguf_metadata import Metadata
from edge.export.graph.llama_like import llama_like

NAME = "smollm3"
TRAITS = {"gguf": "smollm3"}


def layers(config: Any) -> LlamaLike:
    return LlamaLike(
        bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
        windowed=config.use_sliding_window,
        rope=lambda layer: "rope" if config.no_rope_layers[layer] else None,
    )


def gguf(m: Metadata) -> dict[str, Any]:
    # Every fourth layer has no rope: a constant in llama.cpp, which the file does not repeat.
    rotated = [int((i + 1) % 4 != 0) for i in range(m.size("block_count"))]
    return {"rope_parameters": m.rope(), "no_rope_layers": rotated, "use_sliding_window": False, **m.biases()}


FAMILY = llama_like(layers, gguf=GGUF(gguf, permuted=True))
