"""Rotary position tables (RoPE, Su et al. 2021, arXiv:2104.09864) and the ways in which they are stretched."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnxscript import nn

from edge.errors import ExportError
from edge.export.graph.operators import Lowering, Value
from edge.export.graph.weights import Weights


class RotaryTable(nn.Module):
    """Cosines and sines of all positions: two tables [max_context, rotated dimensions / 2]; after them, of LongRoPE,
    those of the positions of short texts (`short_rope`)."""

    def __init__(self, weights: Weights, name: str, cos: NDArray[np.float32], sin: NDArray[np.float32]):
        super().__init__()
        self.cos = weights.table(f"{name}.cos", cos)
        self.sin = weights.table(f"{name}.sin", sin)

    def forward(self, op: Lowering) -> tuple[Value, Value]:
        return self.cos, self.sin


def rotary_tables(weights: Weights, config: Any, max_context: int) -> dict[str, RotaryTable]:
    """The table of a configuration for the positions 0 to max_context - 1, as "rope"; or one for each type of layers,
    by its name, where `rope_parameters` has some for each."""
    stated = config.rope_parameters
    if "rope_type" in stated:
        tables = cos_sin(config, stated, max_context)
        if (short := short_rope(config, max_context)) is not None:
            more = cos_sin(config, stated, short)
            tables = np.concatenate([tables[0], more[0]]), np.concatenate([tables[1], more[1]])
        return {"rope": RotaryTable(weights, "rope", *tables)}
    return {
        kind: RotaryTable(weights, f"{kind}.rope", *cos_sin(config, stated[kind], max_context))
        for kind in dict.fromkeys(config.layer_types)
    }


def short_rope(config: Any, max_context: int) -> int | None:
    """Tokens of the longest text that LongRoPE rotates by its short factors, where there is room for longer ones; None
    where all texts are rotated alike."""
    stated = config.rope_parameters
    if stated.get("rope_type") != "longrope" or max_context <= stated["original_max_position_embeddings"]:
        return None
    return int(stated["original_max_position_embeddings"])


def cos_sin(
    config: Any, parameters: Mapping[str, Any], max_context: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines [max_context, rotated dimensions / 2] float32.

    Frequencies are rounded to float32 once: within a unit in the last place of those that transformers computes in
    float32. Angles are products in float32, as there, so that position 8,191 is turned as in training.

    Raises:
        ExportError: the way of stretching is unknown.
    """
    frequencies, scale = _frequencies(config, parameters, max_context)
    angles = np.arange(max_context, dtype=np.float32)[:, None] * frequencies
    return np.cos(angles) * np.float32(scale), np.sin(angles) * np.float32(scale)


def _frequencies(config: Any, parameters: Mapping[str, Any], max_context: int) -> tuple[NDArray[np.float32], float]:
    """Angles per position [rotated dimensions / 2], and what cosines and sines are multiplied by.

    Those that depend on the sequence's length are taken at `max_context`: one table serves all steps on a text, so that
    cached keys stay valid.
    """
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = int(head * parameters.get("partial_rotary_factor", 1.0))
    base, trained, kind = parameters["rope_theta"], config.max_position_embeddings, parameters["rope_type"]
    if kind == "proportional":  # Gemma 4's: channels of low frequencies stand still, wherever their partners are
        turned = np.arange(0, 2 * int(width // 2), 2, dtype=np.float32) / np.float32(head)
        frequencies = _inverse(base ** turned.astype(np.float64)) / np.float32(parameters.get("factor", 1.0))
        return np.concatenate([frequencies, np.zeros(head // 2 - len(turned), np.float32)]), 1.0
    exponents = (np.arange(0, width, 2) / np.float32(width)).astype(np.float32).astype(np.float64)
    if kind == "default":
        return _inverse(base**exponents), 1.0
    if kind == "linear":  # Chen et al. 2023, arXiv:2306.15595
        return _inverse(base**exponents) / np.float32(parameters["factor"]), 1.0
    if kind == "dynamic" and parameters.get("alpha"):  # Hunyuan's: a larger base for all texts
        return _inverse((base * parameters["alpha"] ** (width / (width - 2))) ** exponents), 1.0
    if kind == "dynamic":  # a larger base for texts longer than those of training
        factor, length = parameters["factor"], max(max_context, trained)
        base *= (factor * length / trained - (factor - 1)) ** (width / (width - 2))
        return _inverse(base**exponents), 1.0
    if kind == "yarn":
        return _yarn(parameters, trained, width, (base**exponents).astype(np.float32))
    if kind == "longrope":  # Ding et al. 2024, arXiv:2402.13753
        original = parameters["original_max_position_embeddings"]
        factors = parameters["long_factor" if max_context > original else "short_factor"]
        factor, scale = parameters.get("factor") or trained / original, parameters.get("attention_factor")
        if scale is None:
            scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        return _inverse(np.array(factors, np.float32) * (base**exponents).astype(np.float32)), scale
    if kind == "llama3":
        return _llama3(parameters, _inverse(base**exponents)), 1.0
    raise ExportError(
        f"The model stretches its rotary positions by {kind!r}; known are default, linear, dynamic, yarn, longrope, "
        "llama3 and proportional."
    )


def _inverse(powers: NDArray[Any]) -> NDArray[np.float32]:
    return np.float32(1) / powers.astype(np.float32)


def _yarn(
    parameters: Mapping[str, Any], trained: int, width: int, powers: NDArray[np.float32]
) -> tuple[NDArray[np.float32], float]:
    """YaRN (Peng et al. 2023, arXiv:2309.00071): high frequencies as they are, low ones divided, between a ramp."""
    original = parameters["original_max_position_embeddings"]
    factor = parameters["factor"] or trained / original

    def temperature(weight: float) -> float:  # section 3.4
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    def dimension(turns: float) -> float:  # that turns so often over the original context: equation 17
        return width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(parameters["rope_theta"]))

    low, high = dimension(parameters.get("beta_fast") or 32), dimension(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    pairs, span = np.arange(width // 2, dtype=np.float32), np.float32(max(high - low, 0.001))
    ramp = np.clip((pairs - np.float32(low)) / span, 0, 1)
    frequencies = _inverse(np.float32(factor) * powers) * ramp + _inverse(powers) * (1 - ramp)
    scale, whole, own = (parameters.get(key) for key in ("attention_factor", "mscale_all_dim", "mscale"))
    if scale is None:
        scale = temperature(own) / temperature(whole) if own and whole else temperature(1.0)
    return frequencies, scale


def _llama3(parameters: Mapping[str, Any], frequencies: NDArray[np.float32]) -> NDArray[np.float32]:
    """Llama 3.1's: long wavelengths are divided by a factor, short ones stay, between them a blend."""
    factor, low, high = (parameters[key] for key in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = parameters["original_max_position_embeddings"] * frequencies / (2 * np.pi)  # over the original context
    blend = np.clip((turns - low) / (high - low), 0, 1)
    return (((1 - blend) / factor + blend) * frequencies).astype(np.float32)
