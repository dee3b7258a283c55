"""Ministral 3: Llama's layers, whose queries grow with their positions beyond the context of pretraining."""

from __future__ import annotations

from typing import Any

from edge.errors import ExportError
from edge.export.facts.family import GGUF, LlamaLike
from edge.export.facts.gguf_metadata import Metadata
from edge.export.graph.llama_like import llama_like

NAME = "ministral3"
TRAITS = {"gguf": "mistral3"}


def layers(config: Any) -> LlamaLike:
    if config.model_type == "mistral":
        return LlamaLike()
    rope = config.rope_parameters
    rate, original = rope.get("llama_4_scaling_beta"), rope.get("original_max_position_embeddings")
    if rate is None or original is None:
        raise ExportError(
            "The model's rope_parameters lack llama_4_scaling_beta or original_max_position_embeddings, by which "
            "Ministral 3 scales queries; fetch its config.json again."
        )
    return LlamaLike(query_growth=(rate, original))


def gguf(m: Metadata) -> dict[str, Any]:
    rope, rate = m.rope(), m.get("attention.temperature_scale", float)
    if rate is None:  # Mistral Small 3, which llama.cpp's converter calls so, too
        return {"model_type": "mistral", "head_dim": m.head_dim, "rope_parameters": rope}
    scale = m.number("rope.scaling.yarn_log_multiplier", 1.0)
    rope |= {"mscale": scale, "mscale_all_dim": scale, "llama_4_scaling_beta": float(f"{rate:.6g}")}
    return {"head_dim": m.head_dim, "rope_parameters": rope}


FAMILY = llama_like(layers, gguf=GGUF(gguf, permuted=True))
