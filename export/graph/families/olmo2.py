"""OLMo 2: Llama's layers with norms after the blocks and none before them, and a norm over all queries or keys."""

from __future__ import annotations

from typing import Any

from transformers import Olmo2Config
from transformers.models.olmo2.modeling_olmo2 import Olmo2RotaryEmbedding

from edge.export.checkpoint.gguf_config import Metadata
from edge.export.graph.blocks import Attention, RMSNorm, heads_of
from edge.export.graph.families.base import GGUF, Family, Norms
from edge.export.graph.llama_like import Decoder, llama_like
from edge.export.graph.weights import Weights

NAME = "olmo2"
TRAITS = {"gguf": "olmo2"}

NORMS = Norms(attention=None, gates=None, outputs=("post_attention_layernorm", "post_feedforward_layernorm"))


def decoder(config: Olmo2Config, weights: Weights, max_context: int) -> Decoder:
    def norm(name: str, heads: int) -> RMSNorm:
        return RMSNorm(weights, name, config.rms_norm_eps)

    def attention(name: str, i: int) -> Attention:
        heads, bias = heads_of(config), config.attention_bias
        return Attention(weights, name, i, heads, rope="rope", bias=bias, output_bias=bias, qk_norm=norm)

    return llama_like(config, weights, max_context, Olmo2RotaryEmbedding(config), attention, norms=NORMS)


def gguf(m: Metadata) -> dict[str, Any]:
    return {"rope_parameters": m.rope()}


FAMILY = Family(decoder, norms=NORMS, gguf=GGUF(gguf))
