"""Falcon-H1: in each layer attention and a selective scan (Mamba 2) next to each other, and multipliers everywhere."""

from __future__ import annotations

from typing import Any

from edge.errors import ExportError
from edge.export.facts.family import GGUF, LlamaLike, Norms, heads_of
from edge.export.facts.gguf_changes import Change
from edge.export.facts.gguf_metadata import Metadata
from edge.export.graph.families.granite_hybrid import SCAN_BARE, SCAN_NAMES, scan_changes, scan_config, scan_of
from edge.export.graph.llama_like import llama_like

NAME = "falcon_h1"
TRAITS = {"gguf": "falcon-h1"}
ONES = ("attention_in", "attention_out", "ssm_in", "ssm_out", "key", "embedding", "lm_head")


def layers(config: Any) -> LlamaLike:
    read, scanned = config.attention_in_multiplier, config.ssm_in_multiplier
    if (config.attention_bias and read != 1) or (config.mamba_proj_bias and scanned != 1):
        raise ExportError("The model multiplies what projections with biases read, which no graph here does.")
    inner = config.mamba_d_ssm
    mixer = scan_of(
        config,
        config.mamba_expand * config.hidden_size if inner is None else inner,
        out_bias=config.projectors_bias,
        norm=("plain" if config.mamba_norm_before_gate else "gated") if config.mamba_rms_norm else None,
        scales=tuple(scanned * each for each in config.ssm_multipliers),
    )
    return LlamaLike(
        mlp="feed_forward",
        bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
        mlp_scales=tuple(config.mlp_multipliers),
        scale=heads_of(config).dim ** -0.5 * read * read * config.key_multiplier,
        embedding_scale=config.embedding_multiplier,
        head_scale=config.lm_head_multiplier,
        mixer=lambda layer: mixer,
        beside=(read * config.attention_out_multiplier, config.ssm_out_multiplier),
    )


def gguf(m: Metadata) -> dict[str, Any]:
    """The converter multiplies the matrices by the multipliers, and knows the norm after the gate alone."""
    return {
        **scan_config(m, 0),
        "head_dim": m.head_dim,
        "mamba_d_ssm": m.size("ssm.inner_size"),
        "mamba_rms_norm": m.has("blk.0.ssm_norm.weight"),
        "mamba_norm_before_gate": False,
        "projectors_bias": m.has("blk.0.ssm_out.bias"),
        "rope_parameters": m.rope(),
        "mlp_multipliers": [1.0, 1.0],
        "ssm_multipliers": [1.0] * 5,
        **{f"{name}_multiplier": 1.0 for name in ONES},
        **m.biases(),
    }


def changes(config: Any) -> dict[str, Change]:
    return scan_changes(config, config.mamba_d_ssm)


GGUF_NAMES = {
    **SCAN_NAMES,
    "ffn_gate": "feed_forward.gate_proj",
    "ffn_up": "feed_forward.up_proj",
    "ffn_down": "feed_forward.down_proj",
}
FAMILY = llama_like(
    layers,
    norms=Norms(gates="pre_ff_layernorm", final="final_layernorm"),
    gguf=GGUF(
        gguf,
        names=GGUF_NAMES,
        bare={
            **SCAN_BARE,
            "ffn_norm": "pre_ff_layernorm.weight",  # which stands in files without its last part
        },
        stacked={"output_norm": "model.final_layernorm"},
        changes=changes,
    ),
)
