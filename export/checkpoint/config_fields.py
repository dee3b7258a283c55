"""Fields of a configuration that change what a model computes, where transformers' class has none of that name: the
checkpoint is of a newer variant, and its export would be another model."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from edge.errors import CheckpointError

# As published configurations name them, and the values besides None, False and 0 that leave a model as it is.
_CHANGES: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), (1,)),
    **dict.fromkeys(("shared_intermediate_size", "shared_expert_intermediate_size", "n_shared_experts"), ()),
    **dict.fromkeys(("use_expert_bias", "num_dense_layers", "first_k_dense_replace"), ()),
    **dict.fromkeys(("routed_scaling_factor", "n_group"), (1,)),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "num_kv_shared_layers", "hidden_size_per_layer_input"), ()),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "clip_qkv", "use_cla"), ()),
    **dict.fromkeys(("logit_scale", "logits_scaling", "lm_head_multiplier", "residual_multiplier", "scale_emb"), (1,)),
    **dict.fromkeys(("embedding_multiplier", "attention_multiplier", "query_pre_attn_scalar", "scale_depth"), (1,)),
    **dict.fromkeys(("use_qk_norm", "qk_norm", "qk_layernorm", "use_qk_layernorm"), ()),
    **dict.fromkeys(("use_parallel_residual", "parallel_attn", "alibi", "use_alibi", "lm_head_bias"), ()),
    **dict.fromkeys(("rope_interleaved", "rope_interleave", "no_rope_layer_interval", "attn_output_gate"), ()),
    "use_bidirectional_attention": (),
}
_ALWAYS = {
    "hunyuan_v1_dense": {"use_qk_norm"}
}  # what all models of a type have, though their class has no field for it


def refuse_unknown_fields(raw: Mapping[str, Any], model_type: str, known: Container[str], where: str) -> None:
    """Check the fields of a text model's configuration. known: those that transformers' class has.

    Raises:
        CheckpointError: one that is not known is set to something that changes the model.
    """
    for name, neutral in _CHANGES.items():
        value = raw.get(name)
        if not value or value in neutral or name in known or name in _ALWAYS.get(model_type, ()):
            continue
        raise CheckpointError(
            f"{where} sets {name} to {value!r}, which changes what a model computes, and models of the type "
            f"{model_type!r} do not have it here; the checkpoint is of a newer variant."
        )
