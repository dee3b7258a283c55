"""GGUF metadata -> transformers configuration and tensor names, one entry per architecture.

llama.cpp's names are those of `gguf.constants`; what its converter changes in the tensors is undone in `gguf.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.errors import CheckpointError
from edge.export.checkpoint.gguf_header import GGUFHeader

ReadVector = Callable[[str], NDArray[np.float32]]


@dataclass(frozen=True)
class Architecture:
    """One GGUF architecture: its transformers model type and where it differs from Llama."""

    model_type: str
    extra: Callable[[_Metadata, ReadVector], dict[str, Any]] = lambda m, read: {}  # more of the configuration
    permuted: bool = False  # rows of q and k are interleaved for llama.cpp's rope
    norm_offset: float = 0.0  # what the converter added to norm weights
    names: dict[str, str] = field(default_factory=dict)  # tensor names that differ from LAYER_NAMES


LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
MODEL_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)")


class _Metadata:
    """The keys of one architecture, with a sentence for a missing one."""

    def __init__(self, header: GGUFHeader, architecture: str) -> None:
        self._header = header
        self._prefix = architecture
        self.path = header.path

    def get(self, key: str, default: Any = None) -> Any:
        return self._header.metadata.get(f"{self._prefix}.{key}", default)

    def __getitem__(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise CheckpointError(f"{self.path} lacks {self._prefix}.{key} in its metadata; convert it again.")
        return value

    @property
    def head_dim(self) -> int:
        return int(self.get("attention.key_length") or self["embedding_length"] // self["attention.head_count"])


def _llama_rope(m: _Metadata, read: ReadVector) -> dict[str, Any]:
    return {"head_dim": m.head_dim, "rope_parameters": _rope(m, read)}


def _qwen3(m: _Metadata, read: ReadVector) -> dict[str, Any]:
    return {"head_dim": m.head_dim, "rope_parameters": _rope(m, read)}


def _qwen2(m: _Metadata, read: ReadVector) -> dict[str, Any]:
    return {"rope_parameters": _rope(m, read)}


def _smollm3(m: _Metadata, read: ReadVector) -> dict[str, Any]:
    # Every fourth layer has no rope: a constant in llama.cpp, which the file does not repeat.
    return {"rope_parameters": _rope(m, read), "no_rope_layer_interval": 4}


def _phi3(m: _Metadata, read: ReadVector) -> dict[str, Any]:
    rope = _rope(m, read)
    rotary = m.get("rope.dimension_count", m.head_dim)
    extra: dict[str, Any] = {"sliding_window": m.get("attention.sliding_window") or None}
    original = m.get("rope.scaling.original_context_length", m["context_length"])
    long, short = read("rope_factors_long.weight"), read("rope_factors_short.weight")
    if long.size:
        rope = {**rope, "rope_type": "longrope", "long_factor": long.tolist(), "short_factor": short.tolist()}
        rope["original_max_position_embeddings"] = original
        extra["original_max_position_embeddings"] = original
    return {**extra, "rope_parameters": {**rope, "partial_rotary_factor": rotary / m.head_dim}}


def _gemma3(m: _Metadata, read: ReadVector) -> dict[str, Any]:
    full = _rope(m, read, default_base=1_000_000.0)
    heads, layers = m["attention.head_count"], m["block_count"]
    return {
        "head_dim": m.head_dim,
        # Only the 27B model (62 layers) scales queries by hidden/heads: a constant in llama.cpp too.
        "query_pre_attn_scalar": m["embedding_length"] // heads if layers == 62 else m.head_dim,
        "sliding_window": m["attention.sliding_window"],
        "layer_types": ["sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(layers)],
        "rope_parameters": {
            "full_attention": full,
            "sliding_attention": {"rope_type": "default", "rope_theta": m.get("rope.freq_base_swa", 10_000.0)},
        },
    }


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("llama", _llama_rope, permuted=True),
    "qwen2": Architecture("qwen2", _qwen2),
    "qwen3": Architecture("qwen3", _qwen3),
    "smollm3": Architecture("smollm3", _smollm3, permuted=True),
    "phi3": Architecture("phi3", _phi3, names={"ffn_up": "mlp.gate_up_proj"}),
    "gemma3": Architecture(
        "gemma3_text",
        _gemma3,
        norm_offset=1.0,
        names={
            "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        },
    ),
}


def architecture_of(header: GGUFHeader) -> Architecture:
    """What the file says it is.

    Raises:
        CheckpointError: an architecture that is not known here, or a mixture of experts.
    """
    name = header.metadata.get("general.architecture")
    if name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise CheckpointError(f"{header.path} holds the architecture {name!r}; known in GGUF files are: {known}.")
    if header.metadata.get(f"{name}.expert_count"):
        raise CheckpointError(f"{header.path} holds a mixture of experts, which has no graph here.")
    return ARCHITECTURES[name]


def config_of(header: GGUFHeader, read: ReadVector) -> dict[str, Any]:
    """A config.json for the file. `read` gives a vector tensor, empty where there is none."""
    kind = architecture_of(header)
    m = _Metadata(header, header.metadata["general.architecture"])
    if "token_embd.weight" not in header.tensors:
        raise CheckpointError(f"{header.path} holds no token embedding (token_embd.weight); it is not a whole model.")
    config = {
        "model_type": kind.model_type,
        "hidden_size": m["embedding_length"],
        "intermediate_size": m["feed_forward_length"],
        "num_hidden_layers": m["block_count"],
        "num_attention_heads": m["attention.head_count"],
        "num_key_value_heads": m.get("attention.head_count_kv", m["attention.head_count"]),
        "max_position_embeddings": m["context_length"],
        # float32 in the file: 1e-5 comes back as 9.999999747e-06, which is not what the model was trained with
        "rms_norm_eps": float(f"{m['attention.layer_norm_rms_epsilon']:.6g}"),
        "vocab_size": header.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in header.tensors,
        **{f"{key}_token_id": header.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("bos", "eos")},
        "pad_token_id": header.metadata.get("tokenizer.ggml.padding_token_id"),
    }
    if kind.model_type in ("llama", "smollm3"):
        config["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
        config["mlp_bias"] = "blk.0.ffn_up.bias" in header.tensors
    return {**config, **kind.extra(m, read)}


def transformers_name(name: str, kind: Architecture) -> str | None:
    """A GGUF tensor's name in transformers; None for tensors that are no parameters there (rope factors)."""
    if match := _LAYER.fullmatch(name):
        layer, part, suffix = match.groups()
        inner = kind.names.get(part) or LAYER_NAMES.get(part)
        return f"model.layers.{layer}.{inner}.{suffix}" if inner else None
    part, _, suffix = name.rpartition(".")
    return f"{MODEL_NAMES[part]}.{suffix}" if part in MODEL_NAMES else None


def _rope(m: _Metadata, read: ReadVector, default_base: float = 10_000.0) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": m.get("rope.freq_base", default_base)}
    kind = m.get("rope.scaling.type", "none")
    original = m.get("rope.scaling.original_context_length")
    if kind in ("linear", "yarn"):
        rope |= {"rope_type": kind, "factor": m["rope.scaling.factor"]}
        if kind == "yarn":
            rope["original_max_position_embeddings"] = original or m["context_length"]
    elif kind not in ("none", "longrope"):
        raise CheckpointError(f"{m.path} scales its rope by {kind!r}; linear, yarn and llama3 are known.")
    factors = read("rope_freqs.weight")
    return _llama3_rope(m, rope, factors) if factors.size and np.any(factors != 1) else rope


def _llama3_rope(m: _Metadata, rope: dict[str, Any], factors: NDArray[np.float32]) -> dict[str, Any]:
    """Llama 3's rope parameters from the per-frequency divisors that llama.cpp stores instead of them.

    All Llama 3 models share the low and high frequency factors and the original context; the scale is the largest
    divisor. The divisors are computed again and must match.
    """
    low, high, original = 1.0, 4.0, 8192
    scale = float(factors.max())
    wavelengths = 2 * math.pi * rope["rope_theta"] ** (np.arange(factors.size) / factors.size)
    smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    again = 1 / ((1 - smooth) / scale + smooth)
    if not np.allclose(again, factors, rtol=1e-3):
        raise CheckpointError(
            f"{m.path} scales its rope by factors that are not Llama 3's; export the model's original checkpoint."
        )
    return {
        **rope,
        "rope_type": "llama3",
        "factor": scale,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
