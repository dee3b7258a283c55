"""Gemma 2, 3n and 4 from a checkpoint's folder to tokens: however a text is cut, next to others, and after a draft that
was not accepted, logits are Torch's."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from graph_harness import relative_error, tiny_model, torch_logits
from transformers import AutoConfig

import edge
from edge.bundle import Bundle
from edge.errors import ExportError, InputError
from edge.export.checkpoint import open_checkpoint
from edge.export.graph.families import gemma4
from edge.export.reference.in_torch import TorchLogits, load_torch
from edge.manifest import INT8
from edge.runtime.check.perplexity import EngineLogits, compare
from edge.runtime.engine.engine import Engine
from edge.runtime.load import open_engine

CONTEXT = 96
TEXT = np.random.default_rng(5).integers(3, 300, 80)
BASE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "sliding_window": 12,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
}
SHARING = {"num_kv_shared_layers": 2, "hidden_size_per_layer_input": 32}
MODELS: dict[str, dict[str, Any]] = {
    "gemma2": {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gemma4_text": {**SHARING, "global_head_dim": 32, "use_double_wide_mlp": True, "final_logit_softcapping": 3.0},
    "gemma3n_text": {**SHARING, "laurel_rank": 16, "activation_sparsity_pattern": [0.9, 0.5, 0.0, 0.9, 0.0, 0.0]},
}


@dataclass
class Case:
    folder: Path
    model: Any
    bundle: Bundle
    engine: Engine
    expected: np.ndarray  # [S, V] of TEXT


@pytest.fixture(scope="module", params=MODELS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Case:
    folder = tmp_path_factory.mktemp("gemma") / str(request.param)
    model = saved(folder, request.param, tiny_checkpoint)
    bundle = edge.export(folder, folder.with_suffix(".edge"), weights="fp32", candidates=False)
    return Case(folder, model, bundle, open_engine(bundle, context=CONTEXT), torch_logits(model, TEXT))


def saved(folder: Path, kind: str, tokenizer: Path, **changes: Any) -> Any:
    """A tiny random model, which is written to the folder with the tokenizer of another checkpoint."""
    vocabulary = json.loads((tokenizer / "config.json").read_text())["vocab_size"]
    options = {**BASE, **MODELS[kind], "vocab_size": vocabulary, **changes}
    if kind != "gemma2":
        options["vocab_size_per_layer_input"] = vocabulary
    model = tiny_model(AutoConfig.for_model(kind, **options))
    model.save_pretrained(folder)
    for file in tokenizer.glob("*token*"):
        shutil.copy(file, folder)
    return model


@pytest.mark.parametrize("sizes", [[80], [33, 2, 45], [1] * 80], ids=["whole", "chunks", "tokens"])
def test_logits_are_torchs_however_a_text_is_cut(case: Case, sizes: list[int]) -> None:
    cache, made = case.engine.new_cache(), []
    for size in sizes:
        at = cache.length
        made.append(case.engine.step(cache, TEXT[at : at + size], np.arange(size)).copy())
    assert relative_error(np.concatenate(made), case.expected) < 1e-4


def test_a_draft_that_was_not_accepted_leaves_nothing(case: Case) -> None:
    cache, engine = case.engine.new_cache(), case.engine
    engine.step(cache, TEXT[:30])
    engine.step(cache, TEXT[50:55])
    cache.truncate(30)
    made = engine.step(cache, TEXT[30:34], np.arange(4))
    assert relative_error(made, case.expected[30:34]) < 1e-4


def test_texts_side_by_side_are_those_alone(case: Case) -> None:
    engine = case.engine
    slots = engine.new_slots(CONTEXT, 3)
    for length in (20, 5, 41):
        cache = engine.new_cache(CONTEXT)
        engine.step(cache, TEXT[:length])
        slots.join(cache)
    for _ in range(3):
        lengths = [cache.length for cache in slots.caches]
        made = engine.step_all(slots, TEXT[lengths]).reshape(len(lengths), -1)
        assert relative_error(made, case.expected[lengths]) < 1e-4


def test_layers_that_share_keep_nothing(case: Case) -> None:
    shared = [not layer.heads for layer in case.bundle.manifest.kv.layers]
    assert shared == [False] * 4 + [case.model.config.model_type != "gemma2"] * 2
    assert len(case.engine.new_cache().memory) == len(shared)


def test_a_cache_in_bytes_says_nearly_the_same_or_is_not_there(case: Case) -> None:
    if case.model.config.model_type != "gemma2":  # onnxruntime does not attend to the bytes of another layer
        with pytest.raises(InputError, match="int8"):
            open_engine(case.bundle, context=CONTEXT, kv=INT8)
        return
    engine = open_engine(case.bundle, context=CONTEXT, kv=INT8)
    cache = engine.new_cache()
    whole = engine.step(cache, TEXT[:40], np.arange(40)).copy()
    cache.truncate(30)
    parts = [engine.step(cache, TEXT[i : i + 1]).copy() for i in range(30, 40)]
    assert relative_error(whole, case.expected[:40]) < 0.05
    assert relative_error(np.concatenate(parts), case.expected[30:40]) < 0.05


@pytest.mark.parametrize(("weights", "most"), [("int8", 0.02), ("int4", 0.5)])
def test_rounded_weights_are_near_the_floats(case: Case, tmp_path: Path, weights: str, most: float) -> None:
    bundle = edge.export(case.folder, tmp_path / "x.edge", weights=weights, effort="quick")
    reference = TorchLogits(load_torch(open_checkpoint(str(case.folder))))
    found = compare(reference, EngineLogits(open_engine(bundle, context=CONTEXT), 80), [TEXT])
    assert found.kl_mean < most


def test_units_are_refused_where_layers_share(tmp_path: Path, tiny_checkpoint: Path) -> None:
    saved(tmp_path / "x", "gemma4_text", tiny_checkpoint)
    with pytest.raises(ExportError, match="read the keys and values of others"):
        edge.export(tmp_path / "x", tmp_path / "x.edge", weights="fp32", segments=1, check=False)


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("gemma2", {"use_bidirectional_attention": True}, "is an encoder"),
        ("gemma4_text", {"use_bidirectional_attention": "all"}, "is an encoder"),
        ("gemma4_text", {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32},
         "has experts"),
    ],
)  # fmt: skip
def test_what_changes_the_mathematics_is_refused_by_name(
    tmp_path: Path, tiny_checkpoint: Path, kind: str, changes: dict[str, Any], reason: str
) -> None:
    saved(tmp_path / "x", kind, tiny_checkpoint, **changes)
    with pytest.raises((ExportError, InputError), match=reason):
        edge.export(tmp_path / "x", tmp_path / "x.edge", weights="fp32", check=False)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"per_layer_config": {"1": {"head_dim": 32}}}, "of the type 'full_attention' differ in their heads"),
        ({"per_layer_config": {i: {"attention_bias": True} for i in (1, 3, 5)}}, "with another 'attention_bias'"),
        ({"layer_types": ["sliding_attention", "chunked_attention"] * 3}, "of the type 'chunked_attention'"),
    ],
)
def test_layers_that_differ_in_other_ways_are_refused_by_name(changes: dict[str, Any], reason: str) -> None:
    config = AutoConfig.for_model("gemma4_text", **BASE | MODELS["gemma4_text"]).to_dict()
    gemma4.check(SimpleNamespace(**config))
    with pytest.raises(ExportError, match=reason):
        gemma4.check(SimpleNamespace(**config | changes))


def test_a_multimodal_checkpoint_gives_its_text_model_and_says_so(tmp_path: Path, tiny_checkpoint: Path) -> None:
    saved(tmp_path / "x", "gemma4_text", tiny_checkpoint)
    config = tmp_path / "x" / "config.json"
    text = json.loads(config.read_text())
    config.write_text(json.dumps({"model_type": "gemma4", "text_config": text}))
    from safetensors.torch import load_file, save_file

    weights = tmp_path / "x" / "model.safetensors"
    tensors = {name.replace("model.", "model.language_model.", 1): t for name, t in load_file(weights).items()}
    tensors |= {f"model.{part}.x.weight": torch.ones(2, 2) for part in ("vision_tower", "audio_tower", "embed_audio")}
    save_file(tensors, weights)
    said: list[str] = []
    checkpoint = open_checkpoint(str(tmp_path / "x"), say=said.append)
    assert checkpoint.config["model_type"] == "gemma4_text"
    assert said == ["x also reads images, sound or video; its text part alone is exported."]
