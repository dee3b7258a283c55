"""Gemma 2: sliding and full layers in turns, bounded scores and logits, scaled embeddings, four norms, GeGLU."""

from __future__ import annotations

from typing import Any

from edge.errors import ExportError
from edge.export.facts.family import GGUF, LlamaLike
from edge.export.facts.gguf_metadata import Metadata
from edge.export.graph.families.gemma3 import GGUF_NAMES, NORMS
from edge.export.graph.llama_like import llama_like

NAME = "gemma2"
TRAITS = {"gguf": "gemma2"}
LARGEST = 46  # layers of the 27B model


def layers(config: Any) -> LlamaLike:
    if config.use_bidirectional_attention:
        raise ExportError("Gemma 2 with bidirectional attention is an encoder; only decoders can be exported.")
    return LlamaLike(
        bias=config.attention_bias,
        scale=config.query_pre_attn_scalar**-0.5,
        attention_softcap=config.attn_logit_softcapping,
        activation=config.hidden_activation,
        embedding_scale=config.hidden_size**0.5,
        softcap=config.final_logit_softcapping,
    )


def gguf(m: Metadata) -> dict[str, Any]:
    heads, layers = m.size("attention.head_count"), m.size("block_count")
    return {
        "head_dim": m.head_dim,
        # Only the 27B model scales queries by hidden/heads: a constant in llama.cpp too.
        "query_pre_attn_scalar": m.size("embedding_length") // heads if layers == LARGEST else m.head_dim,
        "hidden_activation": "gelu_pytorch_tanh",
        "attn_logit_softcapping": m.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": m.number("final_logit_softcapping", 30.0),
        "use_bidirectional_attention": False,
        "sliding_window": m.size("attention.sliding_window", 4096),
        "layer_types": ["full_attention" if i % 2 else "sliding_attention" for i in range(layers)],
        "rope_parameters": m.rope(),
    }


FAMILY = llama_like(layers, norms=NORMS, gguf=GGUF(gguf, names=GGUF_NAMES))
