"""StableLM: layer norms with biases, heads of which a quarter is rotated; some run attention and feed-forward from one
norm."""

from __future__ import annotations

from typing import Any

from edge.errors import ExportError
from edge.export.facts.family import GGUF, QKVO, LlamaLike, Norms
from edge.export.facts.gguf_metadata import Metadata
from edge.export.graph.llama_like import llama_like

NAME = "stablelm"
TRAITS = {"gguf": "stablelm"}


def layers(config: Any) -> LlamaLike:
    if config.qk_layernorm:
        raise ExportError(
            "The model norms each head of queries and keys with weights of its own (qk_layernorm), which no graph of "
            "the family stablelm does yet."
        )
    return LlamaLike(bias=QKVO[:3] if config.use_qkv_bias else (), parallel=config.use_parallel_residual)


def gguf(m: Metadata) -> dict[str, Any]:
    rotated = m.size("rope.dimension_count", m.head_dim)
    return {
        "rope_parameters": {**m.rope(), "partial_rotary_factor": rotated / m.head_dim},
        "use_qkv_bias": m.biases()["attention_bias"],
        "use_parallel_residual": not m.has("blk.0.ffn_norm.weight"),
        "qk_layernorm": m.has("blk.0.attn_q_norm.weight"),
    }


FAMILY = llama_like(layers, norms=Norms(eps="layer_norm_eps", centred=True, bias=True), gguf=GGUF(gguf))
