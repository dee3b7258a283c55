"""BitNet b1.58: Llama's layers with ternary weights, a norm of what each block's last projection reads, and ReLU^2."""

from __future__ import annotations

from typing import Any

from edge.export.facts.family import GGUF, LlamaLike
from edge.export.graph.llama_like import llama_like

NAME = "bitnet"
TRAITS = {"gguf": "bitnet"}


def layers(config: Any) -> LlamaLike:
    return LlamaLike(bias=config.attention_bias, output_norms=("attn_sub_norm", "ffn_sub_norm"))


FAMILY = llama_like(
    layers,
    gguf=GGUF(
        lambda m: {"rope_parameters": m.rope()},  # models of this architecture have SiLU
        names={"attn_sub_norm": "self_attn.attn_sub_norm", "ffn_sub_norm": "mlp.ffn_sub_norm"},
    ),
)
