"""T5 in a GGUF file: an encoder and a decoder, by llama.cpp's names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from edge.errors import CheckpointError

_STACKS = {"enc": ("encoder", 1), "dec": ("decoder", 2)}  # with the place of the feed-forward block in a layer
_LAYER = re.compile(r"(enc|dec)\.blk\.(\d+)\.(.+)\.weight")
_MODEL = {
    "token_embd.weight": "shared.weight",
    "output.weight": "lm_head.weight",
    "enc.output_norm.weight": "encoder.final_layer_norm.weight",
    "dec.output_norm.weight": "decoder.final_layer_norm.weight",
}
# A layer's tensors, where {} is the place of the feed-forward block.
_PARTS = {
    **{f"attn_{part}": f"0.SelfAttention.{part}" for part in "qkvo"},
    **{f"cross_attn_{part}": f"1.EncDecAttention.{part}" for part in "qkvo"},
    "attn_rel_b": "0.SelfAttention.relative_attention_bias",
    "attn_norm": "0.layer_norm",
    "cross_attn_norm": "1.layer_norm",
    "ffn_norm": "{}.layer_norm",
    "ffn_gate": "{}.DenseReluDense.wi_0",
    "ffn_up": "{}.DenseReluDense.wi_1",
    "ffn_down": "{}.DenseReluDense.wo",
}
_PLAIN = _PARTS | {"ffn_up": "{}.DenseReluDense.wi"}  # of a feed-forward block without a gate


def transformers_name(name: str, config: dict[str, Any]) -> str | None:
    """A tensor's name in transformers; None for what T5 has no use for (cross-attention's bias by distance)."""
    if (match := _LAYER.fullmatch(name)) is None:
        return _MODEL.get(name)
    stack, feed_forward = _STACKS[match[1]]
    part = (_PARTS if config["is_gated_act"] else _PLAIN).get(match[3])
    return None if part is None else f"{stack}.block.{match[2]}.layer.{part.format(feed_forward)}.weight"


def check_layers(tensors: Iterable[str], config: dict[str, Any], path: Path) -> None:
    """Raise CheckpointError if the metadata counts more layers than there are tensors of."""
    there = {(match[1], match[2]) for name in tensors if (match := _LAYER.fullmatch(name))}
    for stack, key in (("enc", "num_layers"), ("dec", "num_decoder_layers")):
        if config[key] > (found := sum(each[0] == stack for each in there)):
            raise CheckpointError(
                f"{path} counts {config[key]:,} layers of its {_STACKS[stack][0]} and holds tensors of {found}; fetch "
                "it again."
            )


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors of the model, by transformers' names."""
    hidden, wide, vocab = config["d_model"], config["d_ff"], config["vocab_size"]
    inner = config["num_heads"] * config["d_kv"]
    found: dict[str, tuple[int, ...]] = {"shared.weight": (vocab, hidden)}
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = (vocab, hidden)
    inputs = ("wi_0", "wi_1") if config["is_gated_act"] else ("wi",)
    for stack, layers in (("encoder", config["num_layers"]), ("decoder", config["num_decoder_layers"])):
        blocks = ["SelfAttention"] if stack == "encoder" else ["SelfAttention", "EncDecAttention"]
        found[f"{stack}.final_layer_norm.weight"] = (hidden,)
        bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        found[bias] = (config["relative_attention_num_buckets"], config["num_heads"])
        for i in range(layers):
            name = f"{stack}.block.{i}.layer"
            for place, block in enumerate(blocks):
                found |= {f"{name}.{place}.{block}.{part}.weight": (inner, hidden) for part in "qkv"}
                found[f"{name}.{place}.{block}.o.weight"] = (hidden, inner)
            dense = f"{name}.{len(blocks)}.DenseReluDense"
            found |= {f"{dense}.{part}.weight": (wide, hidden) for part in inputs}
            found[f"{dense}.wo.weight"] = (hidden, wide)
            found |= {f"{name}.{place}.layer_norm.weight": (hidden,) for place in range(len(blocks) + 1)}
    return found
