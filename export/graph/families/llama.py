"""Llama 1 to 3, SmolLM2, TinyLlama: pre-norm layers, grouped heads, SiLU-gated feed-forward."""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from edge.export.checkpoint.gguf_config import Metadata
from edge.export.graph.blocks import Attention, GatedMLP, heads_of
from edge.export.graph.families.base import GGUF, PRE_NORM, Family
from edge.export.graph.llama_like import Decoder, llama_like
from edge.export.graph.weights import Weights

NAME = "llama"
TRAITS = {"gguf": "llama"}


def decoder(config: LlamaConfig, weights: Weights, max_context: int) -> Decoder:
    def attention(name: str, i: int) -> Attention:
        bias = config.attention_bias
        return Attention(weights, name, i, heads_of(config), rope="rope", bias=bias, output_bias=bias)

    def mlp(name: str) -> GatedMLP:
        return GatedMLP(weights, name, config.hidden_act, bias=config.mlp_bias)

    return llama_like(config, weights, max_context, LlamaRotaryEmbedding(config), attention, mlp=mlp)


def gguf(m: Metadata) -> dict[str, Any]:
    return {"head_dim": m.head_dim, "rope_parameters": m.rope(), **m.biases()}


FAMILY = Family(decoder, norms=PRE_NORM, gguf=GGUF(gguf, permuted=True))
