"""Every family's graph computes what transformers computes, however the prompt is cut."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from decoder_configs import BASE, LONG, PREFILL, VOCABULARY, rope
from graph_harness import Graph, TinyCheckpoint, build, float_matrices, relative_error, tiny_model, torch_logits
from transformers import AutoConfig

from edge.errors import ExportError
from edge.export.facts.experts import parameter_of
from edge.export.graph.families import find_family, is_like_llama
from edge.export.graph.step import Built
from edge.export.reference.in_numpy import Reference

LENGTH = 16


@dataclass(frozen=True)
class Case:
    name: str
    config: dict[str, Any]
    max_context: int = 32


NINE = {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3}


def case(name: str, model_type: str, max_context: int = 32, **options: Any) -> Case:
    """Options that are None are left to the configuration's own default."""
    config = {**BASE, "model_type": model_type, **options}
    return Case(name, {k: v for k, v in config.items() if v is not None or k == "sliding_window"}, max_context)


KINDS = {
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "global_head_dim": 32,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "sliding_window": 5,
}
SHARING = {"num_kv_shared_layers": 3, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": VOCABULARY}
MULTIPLIED = {
    "embedding_multiplier": 6.0,
    "attention_multiplier": 0.1,
    "residual_multiplier": 0.4,
    "logits_scaling": 3.0,
}
GROWN = {
    **{"factor": 4.0, "original_max_position_embeddings": 5, "beta_fast": 32.0, "beta_slow": 1.0},
    **{"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5},
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2}
GRANITE_EXPERTS = {**MULTIPLIED, "num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 24}
GPT_OSS = {"num_local_experts": 6, "num_experts_per_tok": 2}
SHORT = {"original_max_position_embeddings": LENGTH}
PHI4 = rope("default", partial_rotary_factor=0.75)
CASES = [
    case("llama-tied", "llama", tie_word_embeddings=True),
    case("llama-untied-biases", "llama", attention_bias=True, mlp_bias=True, tie_word_embeddings=False, **NINE),
    case("llama-default-head-dim", "llama", head_dim=None),
    case("llama-old-linear", "llama", rope_scaling={"type": "linear", "factor": 3.0}, rope_theta=5000.0),
    case("llama-linear", "llama", rope_parameters=rope("linear", factor=2.5)),
    # dynamic scaling is taken at the largest context, here the prompt's length
    case("llama-dynamic", "llama", LENGTH, max_position_embeddings=8, rope_parameters=rope("dynamic", factor=2.0)),
    case(
        "llama-llama3",
        "llama",
        rope_parameters=rope(
            "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
        ),
    ),
    case(
        "llama-yarn",
        "llama",
        rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=16),
    ),
    case("mistral-full", "mistral", sliding_window=None, tie_word_embeddings=False),
    case("mistral-window", "mistral", sliding_window=5, **NINE),
    case("qwen2-untied", "qwen2", tie_word_embeddings=False, **NINE),
    case("qwen2-tied-window", "qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=1),
    case("qwen3-tied", "qwen3", tie_word_embeddings=True, head_dim=32),
    case(
        "qwen3-biases-window",
        "qwen3",
        attention_bias=True,
        use_sliding_window=True,
        sliding_window=3,
        max_window_layers=2,
        **NINE,
    ),
    case(
        "gemma2-window",
        "gemma2",
        sliding_window=4,
        query_pre_attn_scalar=24,
        attn_logit_softcapping=1.5,
        final_logit_softcapping=2.0,
    ),
    case("gemma2-uncapped-biases", "gemma2", attention_bias=True, sliding_window=5, tie_word_embeddings=False),
    case("gemma4", "gemma4_text", **KINDS, **SHARING, use_double_wide_mlp=True, final_logit_softcapping=2.0),
    case(
        "gemma4-keys-are-values",
        "gemma4_text",
        **KINDS,
        **SHARING,
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
    ),
    case(
        "gemma4-nothing-by-layer-biases-untied",
        "gemma4_text",
        **KINDS,
        num_kv_shared_layers=0,
        hidden_size_per_layer_input=0,
        attention_bias=True,
        tie_word_embeddings=False,
    ),
    case(
        "gemma3n",
        "gemma3n_text",
        **KINDS,
        **SHARING,
        laurel_rank=16,
        activation_sparsity_pattern=[0.95, 0.5, 0.9, 0.0, 0.0, 0.0],
        intermediate_size=[80, 80, 96, 96, 64, 80],
    ),
    case(
        "gemma3n-another-stream-fewer-rows",
        "gemma3n_text",
        **KINDS,
        **SHARING | {"vocab_size_per_layer_input": 50},
        laurel_rank=16,
        altup_active_idx=2,
        altup_num_inputs=3,
        altup_correct_scale=False,
        tie_word_embeddings=False,
    ),
    case(
        "gemma3-window",
        "gemma3_text",
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        sliding_window=4,
        query_pre_attn_scalar=24,
    ),
    case(
        "gemma3-untied-softcap",
        "gemma3_text",
        rope_parameters={
            "sliding_attention": rope("default"),
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        },
        sliding_window=6,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        final_logit_softcapping=2.0,
        tie_word_embeddings=False,
        **NINE,
    ),
    case(
        "gemma3-old-rope",
        "gemma3_text",
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        sliding_window_pattern=2,
        sliding_window=3,
    ),
    case("phi3", "phi3", head_dim=None),
    case(
        "phi3-old-longrope",
        "phi3",
        LENGTH,
        **PREFILL,
        original_max_position_embeddings=8,
        partial_rotary_factor=0.5,
        rope_scaling={"type": "longrope", **{k: v for k, v in LONG.items() if k != "partial_rotary_factor"}},
    ),
    case("phi3-window-tied", "phi3", head_dim=None, sliding_window=5, tie_word_embeddings=True),
    case("phi3-partial", "phi3", **PREFILL, rope_parameters=rope("default", partial_rotary_factor=0.5)),
    case(
        "phi3-longrope-short",
        "phi3",
        LENGTH,
        **PREFILL,
        original_max_position_embeddings=LENGTH,
        rope_parameters=rope("longrope", original_max_position_embeddings=LENGTH, **LONG),
    ),
    case(
        "phi3-longrope-long",
        "phi3",
        LENGTH,
        **PREFILL,
        original_max_position_embeddings=8,
        rope_parameters=rope("longrope", original_max_position_embeddings=8, **LONG),
    ),
    case("olmo2", "olmo2", tie_word_embeddings=True),
    case("olmo2-biases-untied", "olmo2", attention_bias=True, tie_word_embeddings=False, **NINE),
    case("granite", "granite", tie_word_embeddings=True, **MULTIPLIED),
    case("granite-biases-untied", "granite", attention_bias=True, mlp_bias=True, tie_word_embeddings=False, **NINE),
    case("smollm3", "smollm3", no_rope_layers=[1, 0, 1], tie_word_embeddings=True),
    case(
        "smollm3-biases-window",
        "smollm3",
        no_rope_layers=[1, 0, 1],
        use_sliding_window=True,
        sliding_window=4,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=False,
        **NINE,
    ),
    case("mistral-nemo", "mistral", sliding_window=None, head_dim=32),  # heads wider than hidden / heads
    case("phi4-mini", "phi3", hidden_size=192, head_dim=None, tie_word_embeddings=True, rope_parameters=PHI4),
    case("ministral3-grown", "ministral3", rope_parameters=rope("yarn", **GROWN), head_dim=32),
    case("ministral3-short", "ministral3", LENGTH, rope_parameters=rope("yarn", **{**GROWN, **SHORT}), **NINE),
    case("olmo3-windows", "olmo3", sliding_window=4),
    case(
        "olmo3-yarn-biases",
        "olmo3",
        attention_bias=True,
        sliding_window=3,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        rope_parameters={
            "sliding_attention": rope("default"),
            "full_attention": rope("yarn", factor=4.0, original_max_position_embeddings=16, attention_factor=1.2),
        },
        **NINE,
    ),
    case("exaone4-windows", "exaone4", sliding_window=4, sliding_window_pattern=2),
    case("exaone4-full", "exaone4", sliding_window=None, layer_types=["full_attention"] * 3, tie_word_embeddings=True),
    case("ernie4_5", "ernie4_5", tie_word_embeddings=True),
    case("ernie4_5-biases", "ernie4_5", use_bias=True, tie_word_embeddings=False, **NINE),
    case("hunyuan", "hunyuan_v1_dense", tie_word_embeddings=True, head_dim=32),
    case(
        "hunyuan-alpha-biases",
        "hunyuan_v1_dense",
        attention_bias=True,
        rope_parameters=rope("dynamic", alpha=50.0, factor=1.0),
        **NINE,
    ),
    case("cohere2", "cohere2", sliding_window=4, logit_scale=0.25, head_dim=None),
    case(
        "cohere2-biases",
        "cohere2",
        attention_bias=True,
        sliding_window=5,
        logit_scale=0.5,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        **{**NINE, "hidden_size": 144, "head_dim": None},
    ),
    case("starcoder2", "starcoder2", sliding_window=None, head_dim=None),
    case("starcoder2-window", "starcoder2", sliding_window=4, use_bias=False, tie_word_embeddings=False, head_dim=None),
    case("stablelm", "stablelm", hidden_size=192, head_dim=None),
    case("stablelm-3b", "stablelm", hidden_size=240, head_dim=None),  # 20 of 80 channels are rotated
    case(
        "stablelm-parallel",
        "stablelm",
        use_parallel_residual=True,
        use_qkv_bias=True,
        tie_word_embeddings=True,
        **{"hidden_size": 192, "head_dim": None},
    ),
    case("olmoe", "olmoe", **EXPERTS),
    case(
        "olmoe-normalized-biases",
        "olmoe",
        **EXPERTS,
        norm_topk_prob=True,
        attention_bias=True,
        tie_word_embeddings=True,
    ),
    case("qwen3moe", "qwen3_moe", **EXPERTS, moe_intermediate_size=24, norm_topk_prob=True),
    case(
        "qwen3moe-dense-layers-window",
        "qwen3_moe",
        **EXPERTS,
        moe_intermediate_size=24,
        mlp_only_layers=[0],
        decoder_sparse_step=2,
        use_sliding_window=True,
        sliding_window=4,
        tie_word_embeddings=True,
    ),
    case("granitemoe", "granitemoe", **GRANITE_EXPERTS, attention_bias=True),
    case("granitemoe-shared", "granitemoeshared", **GRANITE_EXPERTS, shared_intermediate_size=40),
    case("granitemoe-shared-none", "granitemoeshared", **GRANITE_EXPERTS, tie_word_embeddings=True),
    case("gpt-oss", "gpt_oss", **GPT_OSS, sliding_window=4),
    case(
        "gpt-oss-default-rope-no-biases",
        "gpt_oss",
        **GPT_OSS,
        attention_bias=False,
        swiglu_limit=0.5,
        swiglu_alpha=1.0,
        rope_parameters=rope("default"),
        layer_types=["full_attention", "sliding_attention", "full_attention"],
    ),
    case("bitnet", "bitnet", head_dim=None),
    case("bitnet-biases", "bitnet", attention_bias=True, hidden_act="silu", tie_word_embeddings=True, head_dim=None),
]


@dataclass(frozen=True)
class Exported:
    case: Case
    checkpoint: TinyCheckpoint
    root: Path
    built: Built
    ids: np.ndarray
    expected: np.ndarray  # [LENGTH, VOCABULARY], from Torch in one pass

    def graph(self) -> Graph:
        return Graph(self.root, self.built, capacity=LENGTH + 3)


@pytest.fixture(scope="module", params=CASES, ids=lambda c: c.name)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    wanted: Case = request.param
    model = tiny_model(AutoConfig.for_model(**wanted.config))
    checkpoint = TinyCheckpoint(model, wanted.config)
    target = tmp_path_factory.mktemp("graph") / "tiny.edge"
    built, root = build(target, checkpoint, float_matrices(checkpoint), wanted.max_context)
    ids = np.random.default_rng(1).integers(0, VOCABULARY, LENGTH)
    return Exported(wanted, checkpoint, root, built, ids, torch_logits(model, ids))


@pytest.mark.parametrize("chunks", [[LENGTH], [5, 2, 9], [1] * LENGTH], ids=["whole", "chunks", "tokens"])
def test_logits_equal_torch(exported: Exported, chunks: list[int]) -> None:
    assert exported.expected.std() > 0.1  # else nearly anything would pass
    logits = exported.graph().logits(exported.ids, chunks)
    assert relative_error(logits, exported.expected) <= 1e-4


def test_the_reference_in_numpy_equals_torch_too(exported: Exported) -> None:
    if not is_like_llama(exported.checkpoint.config["model_type"]):
        with pytest.raises(ExportError, match="There is no reference in numpy"):
            Reference(exported.checkpoint, exported.case.max_context)
        return
    pieces = Reference(exported.checkpoint, exported.case.max_context).logits(exported.ids)
    assert relative_error(np.concatenate(list(pieces)), exported.expected) <= 1e-5


def test_a_family_names_all_tensors_of_its_models(exported: Exported) -> None:
    checkpoint = exported.checkpoint
    _, family = find_family(checkpoint.config["model_type"])
    config = SimpleNamespace(**checkpoint.config)
    model = checkpoint.model
    there = {parameter_of(name) for name in checkpoint.names()} & model.state_dict().keys()
    stored = {name: checkpoint.shape(name) for name in checkpoint.names() if parameter_of(name) in there}
    assert family.tensors(config) == stored


def test_rows_are_those_asked_for(exported: Exported) -> None:
    logits = exported.graph().step(exported.ids, [3, LENGTH - 1, 0])
    assert relative_error(logits, exported.expected[[3, LENGTH - 1, 0]]) <= 1e-4


def test_a_draft_that_was_rejected_leaves_nothing_behind(exported: Exported) -> None:
    graph = exported.graph()
    graph.step(exported.ids[:6], [5])
    graph.step((exported.ids[6:11] + 1) % VOCABULARY, [4])
    graph.length = 6
    logits = [graph.step(part, list(range(len(part)))) for part in (exported.ids[6:9], exported.ids[9:])]
    assert relative_error(np.concatenate(logits), exported.expected[6:]) <= 1e-4


def test_a_step_takes_a_token_of_each_of_several_texts(exported: Exported) -> None:
    """Of three lengths, each behind the rows of its own text."""
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
