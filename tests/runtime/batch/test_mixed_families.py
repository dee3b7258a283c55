"""Steps of several texts in a row, of models of many families: each text has the bits that it has alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_harness import tiny_model
from transformers import AutoConfig

import edge
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.engine import Engine
from edge.runtime.kernels.library import find_kernels
from edge.runtime.load import open_engine

CONTEXT = 96
TEXT = np.random.default_rng(5).integers(3, 300, 80)
BASE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2}
MIX: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen3": {"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 1},
    "gemma2": {"sliding_window": 9, "query_pre_attn_scalar": 16},
    "phi3": {},
    "olmo2": {},
    "cohere2": {"sliding_window": 9},
    "starcoder2": {"sliding_window": None},
    "olmoe": EXPERTS,
    "gpt_oss": {**{"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 16}, "rope_parameters": {
        **{"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0},
        **{"truncate": False, "original_max_position_embeddings": 64},
    }},
}  # fmt: skip
NOT: dict[str, dict[str, Any]] = {
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "gpt2": {"n_positions": 256},  # whose norms depend on the rows next to them
    "falcon_h1": {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_d_ssm": 128},
}


def engine_of(kind: str, tokenizer: Path, folder: Path) -> Engine:
    """Of a tiny random model, in 8 bits."""
    kernels = find_kernels()
    if kernels is None or not kernels.attention.mixed:
        pytest.skip("needs edge-lm-kernels that take mixed steps")
    tiny = json.loads((tokenizer / "config.json").read_text())
    tokens = {name: tiny[name] for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
    config = AutoConfig.for_model(kind, **BASE | tokens | (MIX | NOT)[kind])
    tiny_model(config).save_pretrained(folder)
    for file in tokenizer.glob("*token*"):
        shutil.copy(file, folder)
    bundle = edge.export(folder, folder.with_suffix(".edge"), weights="int8", effort="quick", candidates=False)
    return open_engine(bundle, context=CONTEXT)


@pytest.mark.parametrize("kind", MIX)
def test_each_text_is_as_if_it_were_alone(kind: str, tiny_checkpoint: Path, tmp_path: Path) -> None:
    engine = engine_of(kind, tiny_checkpoint, tmp_path / kind)
    assert engine.mixes
    slots, alone, lengths = engine.new_slots(CONTEXT, 3), list[KVCache](), (20, 41, 5)
    for length in lengths:
        for cache in (engine.new_cache(CONTEXT), engine.new_cache(CONTEXT)):
            engine.step(cache, TEXT[:length])
            if len(slots.caches) == len(alone):
                slots.join(cache)
            else:
                alone.append(cache)
    for piece in (1, 7, 24):
        tokens, read = TEXT[[cache.length for cache in alone[:2]]], TEXT[alone[2].length :][:piece]
        made = engine.step_all(slots, tokens, piece=read).copy()
        wanted = [engine.step(cache, tokens[i : i + 1]).copy() for i, cache in enumerate(alone[:2])]
        wanted.append(engine.step(alone[2], read).copy())
        np.testing.assert_array_equal(made, np.concatenate(wanted))
    assert [cache.length for cache in slots.caches] == [cache.length for cache in alone]
    for mine, theirs in zip(slots.caches, alone, strict=True):
        for ours, others in zip(mine.buffers, theirs.buffers, strict=True):
            for part, other in zip(ours, others, strict=True):
                np.testing.assert_array_equal(part[:, :, : mine.length], other[:, :, : mine.length])


@pytest.mark.parametrize("kind", NOT)
def test_where_a_row_or_a_text_is_more_than_attention_reads_each_text_is_read_by_itself(
    kind: str, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    assert not engine_of(kind, tiny_checkpoint, tmp_path / kind).mixes
