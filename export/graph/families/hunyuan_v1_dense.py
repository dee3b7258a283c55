"""Hunyuan, the dense models: Llama's layers with a norm over each query and key head after its rotation."""

from __future__ import annotations

from typing import Any

from edge.export.facts.family import GGUF, LlamaLike
from edge.export.facts.gguf_metadata import Metadata
from edge.export.graph.llama_like import llama_like

NAME = "hunyuan_v1_dense"
TRAITS = {"gguf": "hunyuan-dense"}


def layers(config: Any) -> LlamaLike:
    return LlamaLike(
        bias=config.attention_bias, qk_norm="head", qk_names=("query_layernorm", "key_layernorm"), qk_rotated=True
    )


def gguf(m: Metadata) -> dict[str, Any]:
    return {"head_dim": m.head_dim, "rope_parameters": m.rope(), **m.biases()}  # its base is stretched already


FAMILY = llama_like(
    layers,
    gguf=GGUF(gguf, names={"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"}),
)
