"""Qwen 3.5 text: linear attention by the gated delta rule, and in every fourth layer attention with an output gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from edge.errors import ExportError
from edge.export.facts.family import GGUF, Family, LlamaLike, Norms
from edge.export.facts.gguf_changes import AS_IT_IS, Change, decay_of_logarithm, in_turns
from edge.export.facts.gguf_metadata import Metadata
from edge.export.facts.mixers import GatedDelta, Places
from edge.export.graph.llama_like import llama_like

NAME = "qwen3_5_text"
TRAITS = {"gguf": "qwen35"}
LINEAR, FULL = "linear_attention", "full_attention"
INTERVAL = 4  # of layers that attend, where a file does not say
GUESSING = ("eh_proj", "embed_tokens", "enorm", "hnorm", "shared_head_head", "shared_head_norm")  # of layers that guess
NORMS = Norms(offset=1.0)
MOST_CHANNELS = 1 << 20  # of linear attention: 170 times Qwen3-Next's


def mixer_of(config: Any, *, fused: bool = False) -> GatedDelta:
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    key_dim, value_dim = config.linear_key_head_dim, config.linear_value_head_dim
    if min(keys, values, key_dim, value_dim) < 1 or keys * key_dim + values * value_dim > MOST_CHANNELS:
        raise ExportError(
            f"The model has {keys:,} key heads of {key_dim:,} channels in linear attention, and {values:,} value heads "
            f"of {value_dim:,}, which no model has."
        )
    if values % keys:
        raise ExportError(
            f"The model has {values} value heads of linear attention and {keys} key heads, which do not divide them."
        )
    return GatedDelta(
        config.hidden_size,
        keys=keys,
        values=values,
        key_dim=key_dim,
        value_dim=value_dim,
        taps=config.linear_conv_kernel_dim,
        eps=config.rms_norm_eps,
        fused=fused,
    )


def layers(config: Any) -> LlamaLike:
    return in_turns_with_attention(config, mixer_of(config))


def in_turns_with_attention(config: Any, mixer: GatedDelta, **others: Any) -> LlamaLike:
    """The layers of a model that has linear attention in most of them. others: how those with experts differ."""
    return LlamaLike(
        bias=config.attention_bias,
        qk_norm="head",
        output_gate=True,
        mixer=lambda layer: mixer if config.layer_types[layer] == LINEAR else None,
        **others,
    )


def gguf(m: Metadata) -> dict[str, Any]:
    """Layers after the model's own guess further tokens, and are not read."""
    guessing = m.size("nextn_predict_layers", 0, least=0)
    count = m.size("block_count") - guessing
    if count < 1:
        raise m.wrong("nextn_predict_layers", guessing, "there are no more layers")
    if m.states_by_layer("attention.recurrent_layers"):
        recurrent = m.each("attention.recurrent_layers", bool, count + guessing)[:count]
    else:
        interval = m.size("full_attention_interval", INTERVAL)
        recurrent = [(i + 1) % interval != 0 for i in range(count)]
    heads, inner = m.size("ssm.time_step_rank"), m.size("ssm.inner_size")
    if inner % heads:
        raise m.wrong("ssm.inner_size", inner, f"{heads} heads have it together")
    rotated = m.size("rope.dimension_count", m.head_dim // 4)
    return {
        "num_hidden_layers": count,
        "num_nextn_predict_layers": guessing,
        "layer_types": [LINEAR if each else FULL for each in recurrent],
        "head_dim": m.head_dim,
        "linear_num_key_heads": m.size("ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_key_head_dim": m.size("ssm.state_size"),
        "linear_value_head_dim": inner // heads,
        "linear_conv_kernel_dim": m.size("ssm.conv_kernel", least=2),
        "rope_parameters": {**m.rope(), "partial_rotary_factor": rotated / m.head_dim},
    }


def unread(config: Any, like: LlamaLike) -> list[str]:
    """The tensors of layers that guess, which attend. like: the model's own layers."""
    first, count = config.num_hidden_layers, config.num_nextn_predict_layers
    names = [f"nextn.{name}.weight" for name in GUESSING]
    if FULL in config.layer_types:
        names += like.layer_shapes(config, NORMS, config.layer_types.index(FULL))
    return [f"model.layers.{i}.{name}" for i in range(first, first + count) for name in names]


def changes(config: Any) -> dict[str, Change]:
    """Of the tensors that have a row or a column for each channel of a value head: where a key head has several of
    these, files have them in another order."""
    mixer = mixer_of(config)
    each, wide = mixer.values // mixer.keys, 2 * mixer.keys * mixer.key_dim
    heads = channels = joined = None
    if each > 1:
        heads, channels = in_turns(mixer.keys, each, 1), in_turns(mixer.keys, each, mixer.value_dim)
        joined = np.concatenate([np.arange(wide), wide + channels])
    of_block = vectors(mixer, heads, joined) | {
        "in_proj_qkv.weight": Change(rows=joined),
        "in_proj_z.weight": Change(rows=channels),
        "in_proj_b.weight": Change(rows=heads),
        "in_proj_a.weight": Change(rows=heads),
        "out_proj.weight": Change(columns=channels),
    }
    return in_all_layers(config, {f"{mixer.name}.{name}": change for name, change in of_block.items()})


def vectors(mixer: GatedDelta, heads: Places | None = None, channels: Places | None = None) -> dict[str, Change]:
    """The changes of what is no matrix. heads, channels: the places in the file of value heads and of what is
    convolved, where they have another order."""
    return {
        "A_log": Change(rows=heads, values=decay_of_logarithm),
        "dt_bias": Change(rows=heads),
        "conv1d.weight": Change(shape=(mixer.channels, 1, mixer.taps), rows=channels),
        "norm.weight": AS_IT_IS,
    }


def in_all_layers(config: Any, of_layer: Mapping[str, Change]) -> dict[str, Change]:
    return {
        f"model.layers.{i}.{name}": change for i in range(config.num_hidden_layers) for name, change in of_layer.items()
    }


DELTA_NAMES = {
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
    **{f"nextn.{name}": f"nextn.{name}" for name in GUESSING},
}
DELTA_BARE = {"ssm_a": "linear_attn.A_log", "ssm_dt": "linear_attn.dt_bias"}
GGUF_NAMES = {**DELTA_NAMES, "ssm_beta": "linear_attn.in_proj_b", "ssm_alpha": "linear_attn.in_proj_a"}


def family(
    layers: Callable[[Any], LlamaLike],
    read: Callable[[Metadata], dict[str, Any]],
    names: Mapping[str, str],
    changes: Callable[[Any], dict[str, Change]],
    *,
    experts: bool = False,
) -> Family:
    """A family whose layers attend or have the gated delta rule, in turns. read, names, changes: see `GGUF`."""
    return llama_like(
        layers,
        norms=NORMS,
        gguf=GGUF(
            read,
            names=names,
            bare=DELTA_BARE,
            unread=lambda config: unread(config, layers(config)),
            changes=changes,
            experts=experts,
        ),
    )


FAMILY = family(layers, gguf, GGUF_NAMES, changes)
