"""Families whose layers keep a state: their graphs, and the reference in numpy, equal Torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from decoder_configs import BASE, VOCABULARY, rope
from graph_harness import Graph, TinyCheckpoint, build, float_matrices, relative_error, tiny_model, torch_logits
from transformers import AutoConfig

from edge.export.graph.families import find_family, parameter_names
from edge.export.graph.step import Built
from edge.export.reference.in_numpy import Reference

LENGTH = 16
CONVOLUTIONS = {"layer_types": ["conv", "full_attention", "conv"], "head_dim": None}
DELTA = {
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "rope_parameters": rope("default", partial_rotary_factor=0.25),
}
SCAN = {
    "mamba_n_heads": 4,
    "mamba_d_head": 24,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
    "head_dim": None,
}
GRANITE = {
    "model_type": "granitemoehybrid",
    **SCAN,
    "layer_types": ["mamba", "attention", "mamba"],
    "num_local_experts": 0,
    "shared_intermediate_size": 80,
    "logits_scaling": 0.7,
    "embedding_multiplier": 1.5,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.6,
    "tie_word_embeddings": True,
}
FALCON = {
    "model_type": "falcon_h1",
    **SCAN,
    "mamba_d_ssm": 96,
    "head_dim": 16,
    "mamba_rms_norm": True,
    "lm_head_multiplier": 0.8,
    "embedding_multiplier": 1.3,
    "mlp_multipliers": [0.7, 0.9],
    "key_multiplier": 0.6,
    "attention_in_multiplier": 1.2,
    "attention_out_multiplier": 0.9,
    "ssm_multipliers": [0.7, 0.8, 0.9, 1.1, 1.2],
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.5,
}
LFM_EXPERTS = {
    "model_type": "lfm2_moe",
    **CONVOLUTIONS,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "num_dense_layers": 1,
}
SHARED = {
    **{"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "shared_expert_intermediate_size": 40,
}
CASES: dict[str, dict[str, Any]] = {
    "qwen3_5": {"model_type": "qwen3_5_text", **DELTA},
    "qwen3_5-values-untied": {
        "model_type": "qwen3_5_text",
        **DELTA,
        "linear_num_value_heads": 6,
        "attention_bias": True,
        "tie_word_embeddings": False,
    },
    "qwen3_next": {"model_type": "qwen3_next", **DELTA, **SHARED, "linear_num_value_heads": 4},
    "qwen3_5_moe": {"model_type": "qwen3_5_moe_text", **DELTA, **SHARED, "tie_word_embeddings": True},
    "lfm2": {"model_type": "lfm2", **CONVOLUTIONS, "block_auto_adjust_ff_dim": False},
    "lfm2-adjusted-biases": {
        "model_type": "lfm2",
        **CONVOLUTIONS,
        "conv_bias": True,
        "conv_L_cache": 4,
        "block_multiple_of": 16,
        "block_ffn_dim_multiplier": 1.3,
    },
    "lfm2-moe": LFM_EXPERTS,
    "lfm2-moe-plain": {
        **LFM_EXPERTS,
        "use_expert_bias": False,
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.7,
        "num_dense_layers": 0,
        "tie_word_embeddings": False,
    },
    "granite": GRANITE,
    "granite-experts": {**GRANITE, "num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 24},
    "granite-experts-attention": {
        **GRANITE,
        "num_local_experts": 4,
        "num_experts_per_tok": 3,
        "layer_types": ["attention", "mamba", "attention"],
        "position_embedding_type": "rope",
    },
    "granite-groups-rope-untied": {
        **GRANITE,
        "mamba_n_groups": 2,
        "position_embedding_type": "rope",
        "tie_word_embeddings": False,
        "mamba_conv_bias": False,
        "attention_bias": True,
        "mamba_proj_bias": True,
    },
    "falcon-h1": FALCON,
    "falcon-h1-gate-first": {**FALCON, "mamba_norm_before_gate": False, "mamba_n_groups": 2, "mlp_bias": True},
    "falcon-h1-plain": {**FALCON, "mamba_rms_norm": False, "projectors_bias": True, "tie_word_embeddings": True},
}


@dataclass(frozen=True)
class Exported:
    checkpoint: TinyCheckpoint
    root: Path
    built: Built
    ids: np.ndarray
    expected: np.ndarray  # [LENGTH, VOCABULARY], from Torch in one pass

    def graph(self) -> Graph:
        return Graph(self.root, self.built, capacity=LENGTH + 3)

    def logits(self, graph: Graph, start: int, sizes: Sequence[int]) -> np.ndarray:
        """The logits of the tokens from `start` on, in steps of these sizes."""
        steps = []
        for size in sizes:
            steps.append(graph.step(self.ids[start : start + size], list(range(size))))
            start += size
        return np.concatenate(steps)


@pytest.fixture(scope="module", params=CASES)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    config = {name: value for name, value in {**BASE, **CASES[request.param]}.items() if value is not None}
    model = tiny_model(AutoConfig.for_model(**config))
    checkpoint = TinyCheckpoint(model, config)
    built, root = build(tmp_path_factory.mktemp("graph") / "tiny.edge", checkpoint, float_matrices(checkpoint), 64)
    ids = np.random.default_rng(1).integers(0, VOCABULARY, LENGTH)
    return Exported(checkpoint, root, built, ids, torch_logits(model, ids))


@pytest.mark.parametrize("sizes", [[LENGTH], [5, 2, 9], [1] * LENGTH], ids=["whole", "chunks", "tokens"])
def test_logits_equal_torch(exported: Exported, sizes: list[int]) -> None:
    assert exported.expected.std() > 0.1  # else nearly anything would pass
    assert relative_error(exported.logits(exported.graph(), 0, sizes), exported.expected) <= 1e-4


def test_the_reference_in_numpy_equals_torch_too(exported: Exported) -> None:
    pieces = Reference(exported.checkpoint, 64).logits(exported.ids)
    assert relative_error(np.concatenate(list(pieces)), exported.expected) <= 1e-5


def test_a_family_names_all_tensors_of_its_models(exported: Exported) -> None:
    checkpoint = exported.checkpoint
    _, family = find_family(checkpoint.config["model_type"])
    assert family.layers is not None and family.norms is not None
    config = SimpleNamespace(**checkpoint.config)
    parameters = parameter_names(checkpoint.config, checkpoint.names())
    there = set(parameters.values()) & checkpoint.model.state_dict().keys()
    expected = {name: checkpoint.shape(name) for name in checkpoint.names() if parameters[name] in there}
    assert family.layers(config).shapes(config, family.norms) == expected


def test_layers_have_keys_and_values_or_states(exported: Exported) -> None:
    attends = [bool(layer.heads) for layer in exported.built.kv.layers]
    both = exported.checkpoint.config["model_type"] == "falcon_h1"
    kinds = exported.checkpoint.config.get("layer_types", [])
    assert attends == ([True] * 3 if both else [kind == "full_attention" for kind in kinds])
    keeping = {i for i, attention in enumerate(attends) if both or not attention}
    assert keeping and {state.layer for state in exported.built.states} == keeping


def test_a_draft_that_was_rejected_leaves_nothing_behind(exported: Exported) -> None:
    graph = exported.graph()
    graph.step(exported.ids[:6], [5])
    before = graph.mark()
    graph.step((exported.ids[6:11] + 1) % VOCABULARY, [4])
    graph.back(before)
    assert relative_error(exported.logits(graph, 6, [3, LENGTH - 9]), exported.expected[6:]) <= 1e-4


def test_a_step_takes_a_token_of_each_of_several_texts(exported: Exported) -> None:
    """Of three lengths, each behind the rows and states of its own text."""
    lengths = np.array([4, 9, LENGTH - 1])
    graphs = [exported.graph() for _ in lengths]
    for graph, length in zip(graphs, lengths, strict=True):
        graph.step(exported.ids[:length], [length - 1])
    given = {
        "input_ids": exported.ids[lengths][:, None],
        "position_ids": lengths[:, None],
        "seqlens_k": lengths.astype(np.int32),
        "total_sequence_length": np.array(lengths.max() + 1, np.int32),
        "logit_rows": np.zeros(1, np.int64),
        **{f"past.{name}": np.concatenate([graph.arrays[name] for graph in graphs]) for name in graphs[0].arrays},
    }
    inputs = {value.name for value in graphs[0].session.get_inputs()}
    (logits,) = graphs[0].session.run(["logits"], {name: given[name] for name in inputs})
    assert relative_error(logits[:, 0], exported.expected[lengths]) <= 1e-4
