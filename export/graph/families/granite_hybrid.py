"""Granite 4: Granite's layers, most of which may have a selective scan (Mamba 2) in place of attention, and all of them
experts next to their feed-forward block."""

from __future__ import annotations

from typing import Any

from edge.errors import ExportError
from edge.export.facts.family import LlamaLike
from edge.export.facts.mixers import SelectiveScan
from edge.export.graph.families.granite import multiplied
from edge.export.graph.families.granite_moe import mixture
from edge.export.graph.llama_like import llama_like

NAME = "granitemoehybrid"
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


FAMILY = llama_like(layers)
