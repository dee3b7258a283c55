"""The metadata of a GGUF file, as families read their facts from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edge.errors import CheckpointError
from edge.export.facts.experts import check_experts
from edge.export.facts.gguf_header import GGUFHeader

# What else a file may say of YaRN, and transformers' names for it.
_YARN = {"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow", "yarn_attn_factor": "attention_factor"}
HEADS = "attention.head_count_kv"
ReadVector = Callable[[str], NDArray[np.float32]]
T = TypeVar("T", int, float, str, bool)


class Metadata:
    """The keys of the file's architecture, with a sentence for a missing or impossible one.

    read: gives a vector tensor, empty where there is none.
    """

    def __init__(self, header: GGUFHeader, read: ReadVector) -> None:
        self._header = header
        self._prefix = header.metadata["general.architecture"]
        self.path = header.path
        self.vector = read

    def get(self, key: str, kind: type[T]) -> T | None:
        return self._header.value(f"{self._prefix}.{key}", kind)

    def has(self, tensor: str) -> bool:
        return tensor in self._header.tensors

    def size(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """A number of things, of which there is at least one."""
        value = self._known(key, self.get(key, int), default)
        if value < least:
            raise self.wrong(key, value, f"no model has less than {least}")
        return value

    def sizes(self, key: str, layers: int) -> list[int]:
        """A number of things in each layer, stated for each or once for all."""
        if not self.states_by_layer(key):
            return [self.size(key)] * layers
        values = self.each(key, int, layers)
        if (least := min(values)) < 1:
            raise self.wrong(key, least, "no model has less than 1")
        return values

    def each(self, key: str, kind: type[T], layers: int) -> list[T]:
        """What is stated of each layer."""
        values = self._header.values(f"{self._prefix}.{key}", kind)
        if len(values) != layers:
            raise CheckpointError(
                f"{self.path} states {self._prefix}.{key} for {len(values)} layers, and there are {layers}; fetch it "
                "again."
            )
        return values

    def quantiles(self, key: str, layers: int) -> list[float]:
        """The part of a normal distribution that lies below a number stated of each layer, which may be -infinity."""
        values = self._header.metadata.get(f"{self._prefix}.{key}")
        numbers = [float(v) for v in values if isinstance(v, float)] if isinstance(values, list) else []
        if len(numbers) != layers or any(math.isnan(number) for number in numbers):
            raise CheckpointError(
                f"{self.path} states no number as {self._prefix}.{key} for each of its {layers} layers; fetch it again."
            )
        return [0.0 if number == -math.inf else round(NormalDist().cdf(number), 6) for number in numbers]

    def experts(self, count: str = "num_local_experts") -> dict[str, int]:
        """Return the fields of the configuration that say how many experts there are, and how many a token chooses.
        count: what the first is called."""
        there, chosen = self.size("expert_count"), self.size("expert_used_count")
        check_experts(str(self.path), there, chosen, self.size("block_count"))
        return {count: there, "num_experts_per_tok": chosen}

    def states_by_layer(self, key: str) -> bool:
        """True if a key has a value for each layer."""
        return isinstance(self._header.metadata.get(f"{self._prefix}.{key}"), list)

    def key_value_heads(self, heads: int) -> int:
        """The heads of keys and values of all layers that have some. heads: of queries."""
        if not self.states_by_layer(HEADS):
            return self.size(HEADS, heads)
        if len(counts := {n for n in self._header.values(f"{self._prefix}.{HEADS}", int) if n}) != 1:
            raise self.wrong(HEADS, max(counts, default=0), "layers that attend have as many each")
        return counts.pop()

    def attends(self, layers: int) -> list[bool]:
        """Return which layers have heads of keys and values."""
        return [n > 0 for n in self.each(HEADS, int, layers)] if self.states_by_layer(HEADS) else [True] * layers

    def rows(self, tensor: str) -> int:
        """The rows of a matrix that the model cannot be without."""
        if tensor not in self._header.tensors:
            raise CheckpointError(f"{self.path} lacks the tensor {tensor!r}; fetch it again.")
        return self._header.tensors[tensor].shape[0]

    def epsilon(self, key: str) -> float:
        """A small number that was written in float32: 1e-5 comes back as 9.999999747e-06, which is not what the model
        was trained with."""
        return float(f"{self.number(key):.6g}")

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

    def biases(self) -> dict[str, bool]:
        """Return the fields of the configuration that say if attention and feed-forward blocks have biases."""
        tensors = self._header.tensors
        return {"attention_bias": "blk.0.attn_q.bias" in tensors, "mlp_bias": "blk.0.ffn_up.bias" in tensors}

    def windows(self, period: int | None = None) -> dict[str, Any]:
        """Return the fields of the configuration that say which layers slide, and how far they see. period: every
        which layer does not where the file says nothing; None: a file without a window has no such layers."""
        layers, key = self.size("block_count"), "attention.sliding_window"
        if not self.get(key, int):
            return {"sliding_window": None, "layer_types": ["full_attention"] * layers}
        slides = self._header.values(f"{self._prefix}.{key}_pattern", bool)
        if not slides and period is not None:
            slides = [(i + 1) % period != 0 for i in range(layers)]
        if len(slides) != layers:
            raise self.wrong(f"{key}_pattern", len(slides), f"the model has {layers} layers")
        return {
            "sliding_window": self.size(key),
            "layer_types": ["sliding_attention" if each else "full_attention" for each in slides],
        }

    def rope(self, default_base: float = 10_000.0) -> dict[str, Any]:
        """The rope parameters of a model whose layers share them."""
        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": self.number("rope.freq_base", default_base)}
        kind = self.get("rope.scaling.type", str) or "none"
        if kind in ("linear", "yarn"):
            rope |= {"rope_type": kind, "factor": self.number("rope.scaling.factor")}
            if kind == "yarn":
                original = self.size("rope.scaling.original_context_length", self.size("context_length"))
                rope["original_max_position_embeddings"] = original
                for key, name in _YARN.items():
                    if (value := self.get(f"rope.scaling.{key}", float)) is not None:
                        rope[name] = float(f"{value:.6g}")
        elif kind not in ("none", "longrope"):
            raise CheckpointError(f"{self.path} scales its rope by {kind!r}; linear, yarn and llama3 are known.")
        factors = self.vector("rope_freqs.weight")
        return self._llama3_rope(rope, factors) if factors.size and np.any(factors != 1) else rope

    def _llama3_rope(self, rope: dict[str, Any], factors: NDArray[np.float32]) -> dict[str, Any]:
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
                f"{self.path} scales its rope by factors that are not Llama 3's; export the model's original "
                "checkpoint."
            )
        return {
            **rope,
            "rope_type": "llama3",
            "factor": scale,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": original,
        }
