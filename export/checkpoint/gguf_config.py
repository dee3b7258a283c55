"""GGUF metadata -> transformers' configuration and tensor names.

llama.cpp's names are those of `gguf.constants`; what differs from Llama stands in the families' files, and what the
converter changes in the tensors is undone in `gguf.py`.
"""

from __future__ import annotations

import re
from typing import Any

from edge.errors import CheckpointError
from edge.export.checkpoint.model_config import MAX_POSITIONS
from edge.export.facts.experts import gguf_stacks
from edge.export.facts.family import GGUF, PRE_NORM, Family
from edge.export.facts.gguf_header import GGUFHeader
from edge.export.facts.gguf_metadata import Metadata, ReadVector
from edge.export.graph.families import FAMILIES
from edge.registry import Entry

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate_inp": "mlp.gate",
    **gguf_stacks("mlp"),
}
MODEL_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "token_embd_norm": "model.embedding_norm",
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
_OF_ROPE = re.compile(r"rope_(freqs|factors_long|factors_short)\.weight$|\.attn_rot_embd\.weight$")
_LAYER = re.compile(r"blk\.(\d+)\.(.+?)(?:\.(weight|bias))?")


def family_of(header: GGUFHeader) -> tuple[str, Family, GGUF]:
    """Return the family of a file's architecture: transformers' model type, the family's facts, and those about GGUF
    files.

    Raises:
        CheckpointError: an architecture that is not known here, or a mixture of experts.
    """
    name = header.value("general.architecture", str)
    known: dict[str, Entry] = {}
    for entry in FAMILIES.values():
        if "gguf" in entry.traits:
            known.setdefault(entry.traits["gguf"], entry)  # of a file's several names the first is the model's own
    if name not in known:
        raise CheckpointError(
            f"{header.path} holds the architecture {name!r}; known in GGUF files are: {', '.join(sorted(known))}."
        )
    family: Family = known[name].load().FAMILY
    assert family.gguf is not None
    if header.value(f"{name}.expert_count", int) and not family.gguf.experts:
        raise CheckpointError(f"{header.path} holds a mixture of experts, which has no graph here.")
    return known[name].name, family, family.gguf


def config_of(header: GGUFHeader, read: ReadVector) -> dict[str, Any]:
    """The configuration of the file's model, with every field that its family reads.

    read: gives a vector tensor, empty where there is none.

    Raises:
        CheckpointError: a size is missing, or the file's tensors or other sizes contradict it.
    """
    model_type, family, kind = family_of(header)
    m = Metadata(header, read)
    if "token_embd.weight" not in header.tensors:
        raise CheckpointError(f"{header.path} holds no token embedding (token_embd.weight); it is not a whole model.")
    rows, tokens = header.tensors["token_embd.weight"].shape[0], len(header.values("tokenizer.ggml.tokens", str))
    if tokens not in (0, rows):
        raise CheckpointError(
            f"{header.path} names {tokens} tokens, and its embedding (token_embd.weight) has {rows} rows; fetch it "
            "again."
        )
    config: dict[str, Any] = {
        "model_type": model_type,
        "vocab_size": rows,
        **{f"{key}_token_id": header.value(f"tokenizer.ggml.{key}_token_id", int) for key in ("bos", "eos")},
        "pad_token_id": header.value("tokenizer.ggml.padding_token_id", int),
    }
    known = family.layers is not None or family.shapes is not None
    return config | (_decoder_config(header, m, kind, family) if known else kind.config(m))


def _decoder_config(header: GGUFHeader, m: Metadata, kind: GGUF, family: Family) -> dict[str, Any]:
    """The configuration of a decoder. One that is not like Llama says itself what may differ by layer."""
    layers, there = m.size("block_count"), len({n[1] for name in header.tensors if (n := _LAYER.fullmatch(name))})
    if layers > there:
        raise m.wrong("block_count", layers, f"the file holds tensors of {there} layers")
    heads, positions = m.size("attention.head_count"), m.size("context_length")
    if positions > MAX_POSITIONS:
        raise m.wrong("context_length", positions, f"no model has more than {MAX_POSITIONS:,}")
    norms = family.norms or PRE_NORM
    config: dict[str, Any] = {
        "hidden_size": m.size("embedding_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": positions,
        norms.eps: m.epsilon(f"attention.layer_norm_{'' if norms.centred else 'rms_'}epsilon"),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "sliding_window": None,
        "tie_word_embeddings": "output.weight" not in header.tensors,
    }
    own = kind.config(m)
    if family.shapes is None:
        if "intermediate_size" not in own:
            config["intermediate_size"] = m.size("feed_forward_length")
        config["num_key_value_heads"] = m.key_value_heads(heads)
    config |= own
    rotated = round(m.head_dim * config["rope_parameters"].get("partial_rotary_factor", 1))
    for key, expected in (("attention.value_length", m.head_dim), ("rope.dimension_count", rotated)):
        if (width := m.size(key, expected)) != expected:
            raise m.wrong(key, width, f"each head is {m.head_dim} wide")
    return config


def transformers_name(name: str, kind: GGUF) -> str | None:
    """A GGUF tensor's name in transformers; None for tensors that are no parameters there (rope factors)."""
    if match := _LAYER.fullmatch(name):
        layer, part, suffix = match.groups()
        if part in kind.bare:
            return f"model.layers.{layer}.{kind.bare[part]}"
        inner = kind.names.get(part) or LAYER_NAMES.get(part) if suffix else None
        return f"model.layers.{layer}.{inner}.{suffix}" if inner else None
    part, _, suffix = name.rpartition(".")
    module = kind.stacked.get(part) or MODEL_NAMES.get(part)
    return f"{module}.{suffix}" if module else None


def refuse_unknown(header: GGUFHeader, kind: GGUF) -> None:
    """Raise CheckpointError if the file holds a tensor that the family does not know: without it the export would be
    another model."""
    for name in header.tensors:
        if transformers_name(name, kind) is None and not _OF_ROPE.search(name):
            raise CheckpointError(
                f"{header.path} holds the tensor {name!r}, which models of the architecture "
                f"{header.value('general.architecture', str)!r} do not have here; it is of a newer variant."
            )
