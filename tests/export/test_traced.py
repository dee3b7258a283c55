"""Decoders that have no file of a family are traced by transformers' exporter, and answer as Torch does.

A trace takes 10 seconds and more, so that most types are marked slow.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import ModelProto
from safetensors.numpy import load_file, save_file

import edge
from edge.bundle import Bundle
from edge.errors import CheckpointError, EdgeError, ExportError, InputError
from edge.export.check.of_decoder import check_text
from edge.export.checkpoint import open_checkpoint
from edge.export.pipeline import traced as pipeline
from edge.export.reference import traced
from edge.export.reference.in_torch import TorchLogits
from edge.export.reference.traced import load_whole
from edge.runtime.engine.engine import Engine
from edge.runtime.load import open_engine

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 128}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
WIDE = {**SIZES, "intermediate_size": 128}
GROUPED = {**WIDE, "num_key_value_heads": 2}
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": GPT2,
    "gpt_neox": WIDE,
    "opt": {**SIZES, "ffn_dim": 128, "word_embed_proj_dim": 64},
    "bloom": {"hidden_size": 64, "n_layer": 2, "n_head": 4},
    "falcon": SIZES,
    "mpt": {"d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 128},
    "phi": WIDE,
    "codegen": {**GPT2, "rotary_dim": 8},
    "gptj": {**GPT2, "rotary_dim": 8},
    "persimmon": WIDE,
    "nemotron": GROUPED,
    "helium": {**GROUPED, "head_dim": 16},
    "glm": {**GROUPED, "head_dim": 16},
    "glm4": {**GROUPED, "head_dim": 16},
    "cohere": GROUPED,
    "gpt_bigcode": GPT2,
    "biogpt": WIDE,
    "arcee": GROUPED,
    "apertus": GROUPED,
    "olmo": GROUPED,
}
QUICK = ("gpt_neox",)
TOKENS = 40


def made(kind: str, folder: Path, tiny: Path) -> Path:
    """A random model of a type, with the tokenizer of `tiny`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    known = AutoConfig.from_pretrained(tiny)
    tokens = {name: getattr(known, name) for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
    torch.manual_seed(3)
    config = AutoConfig.for_model(kind, **{**MODELS[kind], **tokens})
    if hasattr(config, "initializer_range"):
        config.initializer_range = 0.2
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def traced_once() -> Iterator[None]:
    """Each type is traced once, for several exports of one model."""
    known = dict[str, bytes]()

    def trace(model: Any) -> ir.Model:
        kind = model.config.model_type
        if kind in known:
            return ir.from_proto(ModelProto.FromString(known[kind]))
        found = traced.trace(model)
        known[kind] = ir.to_proto(found).SerializeToString()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "trace", trace)
        yield


@pytest.fixture(scope="module")
def neox(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    return made("gpt_neox", tmp_path_factory.mktemp("traced") / "gpt_neox", tiny_checkpoint)


@pytest.fixture(scope="module")
def bundle(neox: Path) -> Bundle:
    return edge.export(neox, neox.parent / "gpt_neox.edge", effort="quick")


def logits(engine: Engine, tokens: np.ndarray, ends: list[int]) -> np.ndarray:
    """The logits of all tokens, in steps that end there."""
    cache, found, start = engine.new_cache(), [], 0
    for end in ends:
        found.append(engine.step(cache, tokens[start:end], rows=np.arange(end - start)).copy())
        start = end
    return np.concatenate(found)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in MODELS]
)
def test_a_traced_model_has_torch_s_logits_however_a_text_is_cut(
    kind: str, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    folder = made(kind, tmp_path / kind, tiny_checkpoint)
    bundle = edge.export(folder, tmp_path / "x.edge", weights="fp32", effort="quick")
    checkpoint = open_checkpoint(str(folder))
    (tokens,) = check_text(checkpoint, TOKENS)
    expected = np.concatenate(list(TorchLogits(load_whole(checkpoint)).logits(tokens)))
    engine = open_engine(bundle)
    for ends in ([TOKENS], [7, 16, TOKENS], [*range(1, TOKENS + 1)]):
        assert np.abs(logits(engine, tokens, ends) - expected).max() < 1e-4 * max(1, np.abs(expected).max())
    cache = engine.new_cache()
    engine.step(cache, tokens[:10])
    engine.step(cache, tokens[20:26])  # a draft of which nothing is accepted
    cache.truncate(10)
    found = engine.step(cache, tokens[10:20])[0]
    assert np.abs(found - expected[19]).max() < 1e-4 * max(1, np.abs(expected).max())


def test_its_matrices_are_rounded(bundle: Bundle) -> None:
    manifest = bundle.manifest
    assert (manifest.family, manifest.weights, manifest.context) == ("gpt_neox", "int8", 128)
    layers = next(group for group in manifest.groups if group.name == "layers")
    assert (layers.bits, layers.block_size) == (8, 64)
    assert manifest.quality["kl_mean"] < 0.02


def test_it_answers_chats_and_drafts(bundle: Bundle) -> None:
    prompts = ["What is a river?", "Hello there"]
    with edge.load(bundle.root, speculate="off") as model:
        alone = [model.generate(prompt, max_tokens=12).token_ids for prompt in prompts]
        assert [each.token_ids for each in model.generate_all(prompts, max_tokens=12)] == alone
        chat = model.chat()
        chat.generate("Hello there", max_tokens=8)
        chat.generate("And then?", max_tokens=8)
        assert chat.cached_tokens > 0
    with edge.load(bundle.root, speculate="lookup") as model:
        assert [model.generate(prompt, max_tokens=12).token_ids for prompt in prompts] == alone


def refused(folder: Path, kind: type[EdgeError], match: str, **options: Any) -> None:
    out = folder.parent / "refused.edge"
    with pytest.raises(kind, match=match):
        edge.export(folder, out, effort="quick", **options)
    assert not out.exists()


def test_a_trace_that_answers_in_another_way_is_refused_with_the_measure(
    neox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def negated(model: Any) -> Any:
        graph = known(model)
        table = next(value for name, value in graph.graph.initializers.items() if name.endswith("embed_in.weight"))
        assert table.const_value is not None
        table.const_value = ir.tensor(-table.const_value.numpy(), name=table.name)
        return graph

    known = pipeline.trace

    monkeypatch.setattr(pipeline, "trace", negated)
    refused(neox, ExportError, r"does not answer as the model in float32 does \(mean KL divergence [0-9.]+")


def test_what_cannot_be_traced_is_refused_with_the_reason(neox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(model: Any, fusions: str | None) -> Any:
        raise ValueError(f"no {fusions}")

    monkeypatch.setattr(pipeline, "trace", traced.trace)
    monkeypatch.setattr(traced, "_traced", fail)
    refused(neox, ExportError, "exporter cannot trace models of the type 'gpt_neox': no cpu")


def test_options_of_families_are_refused(neox: Path) -> None:
    refused(neox, InputError, "of the type 'gpt_neox' are traced; --segments is for", segments=1)
    refused(neox, InputError, "of the type 'gpt_neox' are traced; --target is for", target="cuda")
    refused(neox, InputError, "traced, to --weights int8, int4, fp32, and not fp16", weights="fp16")


def test_missing_and_further_tensors_are_refused(neox: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(neox, tmp_path / "gpt_neox")
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "gpt_neox.layers.0.gate.weight": np.ones((4, 4), np.float32)}, folder / "model.safetensors")
    refused(folder, CheckpointError, r"has the tensor '.*gate\.weight', for which its configuration has no place")
    name = next(name for name in tensors if name.endswith("layers.1.mlp.dense_h_to_4h.weight"))
    save_file({key: value for key, value in tensors.items() if key != name}, folder / "model.safetensors")
    refused(folder, CheckpointError, r"lacks the tensor '.*layers\.1\.mlp\.dense_h_to_4h\.weight'")


def test_code_of_a_checkpoint_is_not_run(neox: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(neox, tmp_path / "own")
    ran = tmp_path / "ran"
    (folder / "modeling_own.py").write_text(f"open({str(ran)!r}, 'w').close()\nclass Own: ...\n")
    config = json.loads((folder / "config.json").read_text())
    classes = {"AutoConfig": "modeling_own.Own", "AutoModelForCausalLM": "modeling_own.Own"}
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "own", "auto_map": classes}))
    refused(folder, ExportError, "the type 'own' cannot be exported.*Code.*is never run")
    assert not ran.exists()


def test_a_model_that_keeps_a_state_is_refused(tmp_path: Path, tiny_checkpoint: Path) -> None:
    MODELS["mamba"] = {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}
    try:
        folder = made("mamba", tmp_path / "mamba", tiny_checkpoint)
    finally:
        del MODELS["mamba"]
    refused(folder, ExportError, "'mamba' keep something else of a text than the keys and values")
