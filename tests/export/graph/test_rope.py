"""Rotary tables beside those of transformers, for every way of stretching."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, Gemma3TextConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from edge.errors import ExportError
from edge.export.graph.rope import cos_sin

POSITIONS = 4096
LLAMA3 = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 1024}
LONG = {"long_factor": [1.0 + i for i in range(24)], "short_factor": [1.0] * 24}
STRETCHED: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 1024},
    "yarn, whole": {"factor": 4.0, "original_max_position_embeddings": 1024, "beta_fast": 16.0, "truncate": False},
    "yarn, scales": {"factor": 8.0, "original_max_position_embeddings": 512, "mscale": 0.7, "mscale_all_dim": 1.0},
    "llama3": LLAMA3,
    "longrope": LONG | {"original_max_position_embeddings": 1024},
    "longrope, short": LONG | {"original_max_position_embeddings": POSITIONS, "factor": 4.0},
}


def configuration(model: str, **more: Any) -> Any:
    sizes = {"hidden_size": 192, "num_attention_heads": 4, "max_position_embeddings": POSITIONS, "vocab_size": 64}
    return AutoConfig.for_model(model, pad_token_id=None, **sizes, **more)


def transformers_table(embedding: torch.nn.Module, *kind: str) -> tuple[np.ndarray, np.ndarray]:
    cos, sin = embedding(torch.zeros(1), torch.arange(POSITIONS)[None], *kind)
    half = cos.shape[-1] // 2
    return cos[0, :, :half].numpy(), sin[0, :, :half].numpy()


@pytest.mark.parametrize("base", [10_000.0, 100_000.0, 500_000.0, 1_000_000.0])
@pytest.mark.parametrize("kind", STRETCHED)
def test_tables_are_those_of_transformers(kind: str, base: float) -> None:
    """A frequency may be rounded to the next float32, which moves the last position's angle by 1e-4 at most."""
    parameters = {"rope_type": kind.partition(",")[0], "rope_theta": base, **STRETCHED[kind]}
    config = configuration("llama", rope_parameters=parameters)
    found = cos_sin(config, config.rope_parameters, POSITIONS)
    for own, theirs in zip(found, transformers_table(LlamaRotaryEmbedding(config)), strict=True):
        assert own.shape == theirs.shape and own.dtype == np.float32
        np.testing.assert_allclose(own[:16], theirs[:16], atol=1e-6)
        np.testing.assert_allclose(own, theirs, atol=2e-4)
        assert np.mean(np.abs(own - theirs) <= 1e-6) > 0.9


def test_heads_may_be_rotated_in_part() -> None:
    parameters = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
    config = configuration("phi3", rope_parameters=parameters)
    found = cos_sin(config, config.rope_parameters, POSITIONS)
    assert found[0].shape == (POSITIONS, 12)
    np.testing.assert_allclose(found, transformers_table(Phi3RotaryEmbedding(config)), atol=1e-6)


@pytest.mark.parametrize("kind", ["sliding_attention", "full_attention"])
def test_types_of_layers_have_their_own(kind: str) -> None:
    config = Gemma3TextConfig(head_dim=48, max_position_embeddings=POSITIONS)
    found = cos_sin(config, config.rope_parameters[kind], POSITIONS)
    np.testing.assert_allclose(found, transformers_table(Gemma3RotaryEmbedding(config), kind), atol=2e-4)


def test_an_unknown_way_of_stretching_is_refused() -> None:
    config = SimpleNamespace(head_dim=48, max_position_embeddings=64)
    with pytest.raises(ExportError, match="rotary positions by 'spiral'; known are default, linear"):
        cos_sin(config, {"rope_type": "spiral", "rope_theta": 1e4}, 64)
