"""GGUF metadata -> transformers configuration and tensor names, one entry per architecture.

llama.cpp's names are those of `gguf.constants`; what its converter changes in the tensors is undone in `gguf.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edge.errors import CheckpointError
from edge.export.checkpoint.gguf_header import GGUFHeader
from edge.export.checkpoint.model_config import MOST_POSITIONS

ReadVector = Callable[[str], NDArray[np.float32]]
T = TypeVar("T", int, float, str)


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
    """The keys of one architecture, with a sentence for a missing or impossible one."""

    def __init__(self, header: GGUFHeader, architecture: str) -> None:
        self._header = header
        self._prefix = architecture
        self.path = header.path

    def get(self, key: str, kind: type[T]) -> T | None:
        return self._header.value(f"{self._prefix}.{key}", kind)

    def size(self, key: str, default: int | None = None) -> int:
        """A number of things, of which there is at least one."""
        value = self._known(key, self.get(key, int), default)
        if value < 1:
            raise self.wrong(key, value, "no model has less than 1")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number above zero."""
        value = self._known(key, self.get(key, float), default)
        if value <= 0:
            raise self.wrong(key, value, "no model has it at zero or below")
        return value

    def wrong(self, key: str, value: float, reason: str) -> CheckpointError:
        return CheckpointError(f"{self.path} gives {self._prefix}.{key} as {value}, and {reason}; fetch it again.")

    def _known(self, key: str, value: T | None, default: T | None) -> T:
        known = default if value is None else value
        if known is None:
            raise CheckpointError(f"{self.path} lacks {self._prefix}.{key} in its metadata; convert it again.")
        return known

    @property
    def head_dim(self) -> int:
        each = self.size("embedding_length") // self.size("attention.head_count")
        return self.size("attention.key_length", max(each, 1))


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
    rotary = m.size("rope.dimension_count", m.head_dim)
    window = m.size("attention.sliding_window") if m.get("attention.sliding_window", int) else None  # 0: none
    extra: dict[str, Any] = {"sliding_window": window}
    original = m.size("rope.scaling.original_context_length", m.size("context_length"))
    long, short = read("rope_factors_long.weight"), read("rope_factors_short.weight")
    if long.size:
        for factors in (long, short):
            if factors.size != rotary // 2:
                reason = f"the file holds {factors.size} rope factors instead of {rotary // 2}"
                raise m.wrong("rope.dimension_count", rotary, reason)
        rope = {**rope, "rope_type": "longrope", "long_factor": long.tolist(), "short_factor": short.tolist()}
        rope["original_max_position_embeddings"] = original
        extra["original_max_position_embeddings"] = original
    return {**extra, "rope_parameters": {**rope, "partial_rotary_factor": rotary / m.head_dim}}


def _gemma3(m: _Metadata, read: ReadVector) -> dict[str, Any]:
    full = _rope(m, read, default_base=1_000_000.0)
    heads, layers = m.size("attention.head_count"), m.size("block_count")
    return {
        "head_dim": m.head_dim,
        # Only the 27B model (62 layers) scales queries by hidden/heads: a constant in llama.cpp too.
        "query_pre_attn_scalar": m.size("embedding_length") // heads if layers == 62 else m.head_dim,
        "sliding_window": m.size("attention.sliding_window"),
        "layer_types": ["sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(layers)],
        "rope_parameters": {
            "full_attention": full,
            "sliding_attention": {"rope_type": "default", "rope_theta": m.number("rope.freq_base_swa", 10_000.0)},
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
    name = header.value("general.architecture", str)
    if name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise CheckpointError(f"{header.path} holds the architecture {name!r}; known in GGUF files are: {known}.")
    if header.value(f"{name}.expert_count", int):
        raise CheckpointError(f"{header.path} holds a mixture of experts, which has no graph here.")
    return ARCHITECTURES[name]


def config_of(header: GGUFHeader, read: ReadVector) -> dict[str, Any]:
    """A config.json for the file. `read` gives a vector tensor, empty where there is none.

    Raises:
        CheckpointError: a size is missing, or the file's tensors or other sizes contradict it.
    """
    kind = architecture_of(header)
    m = _Metadata(header, header.metadata["general.architecture"])
    if "token_embd.weight" not in header.tensors:
        raise CheckpointError(f"{header.path} holds no token embedding (token_embd.weight); it is not a whole model.")
    layers, there = m.size("block_count"), len({n[1] for name in header.tensors if (n := _LAYER.fullmatch(name))})
    if layers > there:
        raise m.wrong("block_count", layers, f"the file holds tensors of {there} layers")
    for key in ("attention.value_length", *(["rope.dimension_count"] if kind.model_type != "phi3" else [])):
        if (width := m.size(key, m.head_dim)) != m.head_dim:
            raise m.wrong(key, width, f"each head is {m.head_dim} wide")
    rows, tokens = header.tensors["token_embd.weight"].shape[0], len(header.values("tokenizer.ggml.tokens", str))
    if tokens not in (0, rows):
        raise CheckpointError(
            f"{header.path} names {tokens} tokens, and its embedding (token_embd.weight) has {rows} rows; fetch it "
            "again."
        )
    heads, positions = m.size("attention.head_count"), m.size("context_length")
    if positions > MOST_POSITIONS:
        raise m.wrong("context_length", positions, f"no model has more than {MOST_POSITIONS:,}")
    config = {
        "model_type": kind.model_type,
        "hidden_size": m.size("embedding_length"),
        "intermediate_size": m.size("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": m.size("attention.head_count_kv", heads),
        "max_position_embeddings": positions,
        # float32 in the file: 1e-5 comes back as 9.999999747e-06, which is not what the model was trained with
        "rms_norm_eps": float(f"{m.number('attention.layer_norm_rms_epsilon'):.6g}"),
        "vocab_size": rows,
        "tie_word_embeddings": "output.weight" not in header.tensors,
        **{f"{key}_token_id": header.value(f"tokenizer.ggml.{key}_token_id", int) for key in ("bos", "eos")},
        "pad_token_id": header.value("tokenizer.ggml.padding_token_id", int),
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
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": m.number("rope.freq_base", default_base)}
    kind = m.get("rope.scaling.type", str) or "none"
    if kind in ("linear", "yarn"):
        rope |= {"rope_type": kind, "factor": m.number("rope.scaling.factor")}
        if kind == "yarn":
            original = m.size("rope.scaling.original_context_length", m.size("context_length"))
            rope["original_max_position_embeddings"] = original
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
