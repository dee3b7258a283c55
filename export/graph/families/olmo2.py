"""OLMo 2: Llama's layers with norms after the blocks and none before them, and a norm over all queries or keys."""

from __future__ import annotations

from typing import Any

from edge.export.graph.blocks import RMSNorm
from edge.export.graph.families.base import GGUF, Family, Norms
from edge.export.graph.llama_like import llama_like
from edge.export.graph.stacks import Decoder
from edge.export.graph.weights import Weights

NAME = "olmo2"
TRAITS = {"gguf": "olmo2"}

NORMS = Norms(attention=None, gates=None, outputs=("post_attention_layernorm", "post_feedforward_layernorm"))


def decoder(config: Any, weights: Weights, max_context: int) -> Decoder:
    def norm(name: str, heads: int) -> RMSNorm:
        return RMSNorm(weights, name, config.rms_norm_eps)

    attention = {"bias": config.attention_bias, "qk_norm": norm}
    return llama_like(config, weights, max_context, attention=attention, norms=NORMS)


FAMILY = Family(decoder, norms=NORMS, gguf=GGUF(lambda m: {"rope_parameters": m.rope()}))
