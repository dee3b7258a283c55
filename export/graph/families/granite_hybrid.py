"""Granite 4: Granite's layers, most of which may have a selective scan (Mamba 2) in place of attention, and all of them
experts next to their feed-forward block."""

from __future__ import annotations

from typing import Any

from edge.errors import ExportError
from edge.export.facts.family import GGUF, LlamaLike
from edge.export.facts.gguf_changes import Change, decay_of_logarithm
from edge.export.facts.gguf_metadata import HEADS, Metadata
from edge.export.facts.mixers import SelectiveScan
from edge.export.graph.families.granite import multiplied, multipliers
from edge.export.graph.families.granite_moe import GGUF_NAMES as EXPERT_NAMES
from edge.export.graph.families.granite_moe import JOINED, mixture
from edge.export.graph.llama_like import llama_like

NAME = "granitemoehybrid"
TRAITS = {"gguf": "granitehybrid"}
LINEAR = "linear_attention"


def layers(config: Any) -> LlamaLike:
    mixer = scan_of(config, config.mamba_expand * config.hidden_size, out_bias=config.mamba_proj_bias)
    return multiplied(
        config,
        **mixture(config, config.shared_intermediate_size),
        rope=lambda layer: "rope" if config.position_embedding_type == "rope" else None,
        mixer=lambda layer: mixer if config.layer_types[layer] == LINEAR else None,
    )


def scan_of(config: Any, inner: int, **others: Any) -> SelectiveScan:
    """The selective scan of a configuration, by transformers' names.

    Raises:
        ExportError: what it says of the scan is not computed here.
    """
    heads, groups = config.mamba_n_heads, config.mamba_n_groups
    if config.hidden_act != "silu":
        raise ExportError(f"The model's selective scan has the activation {config.hidden_act!r}; only silu is known.")
    if config.mamba_d_head * heads != inner or heads % groups:
        raise ExportError(
            f"The model's selective scan has {heads} heads of {config.mamba_d_head} in {groups} groups, which do not "
            f"make {inner} channels."
        )
    if config.time_step_limit is not None and tuple(config.time_step_limit) != (0.0, float("inf")):
        raise ExportError(f"The model limits the steps of its scan (time_step_limit {config.time_step_limit}).")
    return SelectiveScan(
        config.hidden_size,
        heads,
        config.mamba_d_head,
        groups,
        config.mamba_d_state,
        config.mamba_d_conv,
        config.rms_norm_eps,
        bias=config.mamba_proj_bias,
        conv_bias=config.mamba_conv_bias,
        **others,
    )


def gguf(m: Metadata) -> dict[str, Any]:
    attends, wide = m.attends(m.size("block_count")), m.size("feed_forward_length")
    hidden, inner = m.size("embedding_length"), m.size("ssm.inner_size")
    if inner % hidden:
        raise m.wrong("ssm.inner_size", inner, f"the model is {hidden} wide")
    if all(attends):
        raise m.wrong(HEADS, m.key_value_heads(1), "some layers have a selective scan in place of attention")
    experts = bool(m.get("expert_count", int))
    return {
        **multipliers(m),
        **scan_config(m, attends.index(False)),
        "attention_bias": m.has(f"blk.{attends.index(True)}.attn_q.bias") if any(attends) else False,
        "mamba_expand": inner // hidden,
        "layer_types": ["full_attention" if each else LINEAR for each in attends],
        # A file that says nothing of it rotates, as llama.cpp does.
        "position_embedding_type": None if m.get("rope.scaling.finetuned", bool) is False else "rope",
        "shared_intermediate_size": m.size("expert_shared_feed_forward_length") if experts else wide,
        **(m.experts() if experts else {"num_local_experts": 0, "num_experts_per_tok": 0}),
    }


def scan_config(m: Metadata, layer: int) -> dict[str, Any]:
    """The fields of the configuration about selective scans. layer: one that has some."""
    inner, heads = m.size("ssm.inner_size"), m.size("ssm.time_step_rank")
    if inner % heads:
        raise m.wrong("ssm.inner_size", inner, f"{heads} heads have it together")
    return {
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_n_groups": m.size("ssm.group_count"),
        "mamba_d_state": m.size("ssm.state_size"),
        "mamba_d_conv": m.size("ssm.conv_kernel", least=2),
        "mamba_conv_bias": m.has(f"blk.{layer}.ssm_conv1d.bias"),
        "mamba_proj_bias": m.has(f"blk.{layer}.ssm_in.bias"),
        "time_step_limit": [0.0, float("inf")],
    }


def changes(config: Any) -> dict[str, Change]:
    return scan_changes(config, config.mamba_expand * config.hidden_size)


def scan_changes(config: Any, inner: int) -> dict[str, Change]:
    """The changed tensors of selective scans. inner: channels of their values."""
    heads, channels = (config.mamba_n_heads,), inner + 2 * config.mamba_n_groups * config.mamba_d_state
    of_block = {
        "A_log": Change(shape=heads, values=decay_of_logarithm),
        "D": Change(shape=heads),
        "conv1d.weight": Change(shape=(channels, 1, config.mamba_d_conv)),
        "norm.weight": Change(shape=(inner,)),
    }
    layers = range(config.num_hidden_layers)
    return {f"model.layers.{i}.mamba.{name}": change for i in layers for name, change in of_block.items()}


SCAN_NAMES = {
    "ssm_in": "mamba.in_proj",
    "ssm_conv1d": "mamba.conv1d",
    "ssm_norm": "mamba.norm",
    "ssm_out": "mamba.out_proj",
}
SCAN_BARE = {"ssm_a": "mamba.A_log", "ssm_d": "mamba.D", "ssm_dt": "mamba.dt_bias"}
GGUF_NAMES = {
    **SCAN_NAMES,
    **EXPERT_NAMES,
    "ffn_gate": "shared_mlp.gate",
    "ffn_up": "shared_mlp.up",
    "ffn_down": "shared_mlp.output_linear",
}
FAMILY = llama_like(
    layers,
    gguf=GGUF(gguf, names=GGUF_NAMES, bare=SCAN_BARE, joined=JOINED, permuted=True, changes=changes, experts=True),
)
