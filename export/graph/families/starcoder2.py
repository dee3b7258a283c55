"""StarCoder 2: layer norms and products with biases, and a feed-forward block without a gate."""

from __future__ import annotations

from typing import Any

from edge.export.facts.family import GGUF, LlamaLike, Norms
from edge.export.facts.gguf_metadata import Metadata
from edge.export.graph.llama_like import llama_like

NAME = "starcoder2"
TRAITS = {"gguf": "starcoder2"}


def layers(config: Any) -> LlamaLike:
    return LlamaLike(bias=config.use_bias, mlp_bias=config.use_bias, gates=("c_fc",), down="c_proj", gated=False)


def gguf(m: Metadata) -> dict[str, Any]:
    return {
        "rope_parameters": m.rope(),
        "hidden_act": "gelu_pytorch_tanh",
        "use_bias": m.biases()["mlp_bias"],
        "sliding_window": m.get("attention.sliding_window", int) or None,  # which llama.cpp's converter leaves out
    }


FAMILY = llama_like(
    layers,
    norms=Norms(eps="norm_epsilon", centred=True, bias=True),
    gguf=GGUF(gguf, names={"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}),
)
