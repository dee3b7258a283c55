"""Exporting a model that makes vectors: what sentence-transformers' files say, and vectors like Torch's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_embedders import TEXTS, by_hand, cosine, tiny_embedder, write_json

import edge
from edge.bundle import open_bundle
from edge.errors import CheckpointError, EdgeError, ExportError, InputError
from edge.golden_vectors import read_vectors

GEMMA = {
    "head_dim": 16, "num_key_value_heads": 1, "query_pre_attn_scalar": 16, "sliding_window": 8,
    "use_bidirectional_attention": True, "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prompts = {"query": "the train: ", "document": ""}
    return tiny_embedder(tmp_path_factory.mktemp("models") / "tiny-bert", prompts=prompts, length=32)


@pytest.mark.parametrize(("weights", "apart"), [("fp32", 1e-5), ("int8", 0.01), ("int4", 0.1)])
def test_vectors_are_those_of_torch(bert: Path, tmp_path: Path, weights: str, apart: float) -> None:
    bundle = edge.export(bert, tmp_path / "m.edge", weights=weights)
    assert 1 - bundle.manifest.quality["cosine_mean"] < apart
    with edge.load(bundle.root, kind=edge.Embedder) as model:
        made = model.embed(TEXTS)
    assert made.shape == (len(TEXTS), 64) and made.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(made, axis=1), 1, atol=1e-5)
    for text, vector in zip(TEXTS, made, strict=True):
        assert 1 - cosine(vector, by_hand(bert, text)) < apart


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("roberta", {"pad_token_id": 1}),
        ("xlm-roberta", {"pad_token_id": 0, "type_vocab_size": 1}),
        ("distilbert", {"dim": 64, "hidden_dim": 96, "n_layers": 2, "n_heads": 4}),
        ("mpnet", {"pad_token_id": 1}),
        ("modernbert", {"local_attention": 6, "num_hidden_layers": 3, "global_attn_every_n_layers": 2}),
        ("nomic_bert", {}),
        ("qwen3", {"head_dim": 16, "num_key_value_heads": 2}),
        ("gemma3_text", GEMMA),
    ],
)
def test_families_make_the_vectors_of_torch(tmp_path: Path, kind: str, config: dict[str, Any]) -> None:
    folder = tiny_embedder(tmp_path / kind, kind, **config)
    bundle = edge.export(folder, tmp_path / "m.edge", weights="fp32")
    assert bundle.manifest.quality["cosine_min"] > 1 - 1e-5
    (made,) = edge.load(bundle.root, kind=edge.Embedder).embed([TEXTS[3]])
    assert 1 - cosine(made, by_hand(folder, TEXTS[3])) < 1e-5


def test_nomic_bert_of_its_makers_code_is_the_same_model(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tiny_embedder(tmp_path / "theirs", "nomic_bert")
    wanted = [by_hand(folder, text) for text in TEXTS]
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    names = {
        "embeddings.LayerNorm": "emb_ln", "layers.": "encoder.layers.", "self_attn.o_proj": "attn.out_proj",
        "up_proj": "fc11", "gate_proj": "fc12", "down_proj": "fc2", "post_attention_layernorm": "norm1",
        "post_mlp_layernorm": "norm2",
    }  # fmt: skip
    made = {}
    for name, tensor in tensors.items():
        if ".q_proj" in name:
            parts = [tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            name, tensor = name.replace("self_attn.q_proj", "attn.Wqkv"), torch.cat(parts)
        for theirs, own in names.items():
            name = name.replace(theirs, own)
        if "_proj" not in name or "out_proj" in name:
            made[name] = tensor.contiguous()
    save_file(made, folder / "model.safetensors", {"format": "pt"})
    own = {
        "model_type": "nomic_bert", "n_embd": 64, "n_head": 4, "n_layer": 2, "n_inner": 96, "n_positions": 8192,
        "max_trained_positions": 66, "rotary_emb_base": config["rope_parameters"]["rope_theta"], "prenorm": False,
        "layer_norm_epsilon": config["layer_norm_eps"], "activation_function": "swiglu", "rotary_emb_fraction": 1.0,
        "vocab_size": config["vocab_size"], "type_vocab_size": 2, "pad_token_id": 0,
    }  # fmt: skip
    write_json(folder / "config.json", own)
    bundle = edge.export(folder, tmp_path / "m.edge", weights="fp32")
    assert bundle.manifest.context == 66
    model = edge.load(bundle.root, kind=edge.Embedder)
    for vector, by_torch in zip(model.embed(TEXTS), wanted, strict=True):
        assert 1 - cosine(vector, by_torch) < 1e-5
    assert model.prompts["search_query"] == "search_query: "
    write_json(folder / "config.json", own | {"prenorm": True})
    with pytest.raises(CheckpointError, match="sets prenorm to 'True'"):
        edge.export(folder, tmp_path / "n.edge")


@pytest.mark.parametrize("mode", ["cls", "last", "max"])
def test_pooling_dense_layers_and_length_are_the_checkpoints(tmp_path: Path, mode: str) -> None:
    folder = tiny_embedder(tmp_path / "tiny", mode=mode, normalize=False, dense=24)
    bundle = edge.export(folder, tmp_path / "m.edge", weights="fp32")
    form = bundle.manifest.embedding
    assert form is not None and (form.width, form.pooling, form.normalized) == (24, mode, False)
    (made,) = edge.load(bundle.root, kind=edge.Embedder).embed([TEXTS[1]])
    np.testing.assert_allclose(made, by_hand(folder, TEXTS[1], mode=mode, normalize=False), atol=1e-4)


def test_the_manifest_says_what_it_is(bert: Path, tmp_path: Path) -> None:
    bundle = open_bundle(edge.export(bert, tmp_path / "m.edge").root)
    manifest, form = bundle.manifest, bundle.manifest.embedding
    assert (manifest.kind, manifest.family, manifest.weights, manifest.context) == ("embedder", "bert", "int8", 32)
    assert form is not None and (form.prefix, form.suffix, form.prompts) == ([2], [3], {"query": "the train: "})
    methods = {group.name: group.method for group in manifest.groups}
    assert methods["encoder.attention"] == "rows, no overflow" and methods["embedding"] == "rtn"
    golden = read_vectors(bundle)
    assert len(golden.cases) == 4 and all(len(case.vector) == 64 for case in golden.cases)


def test_a_model_without_sentence_transformers_files_takes_the_mean(tmp_path: Path) -> None:
    folder = tiny_embedder(tmp_path / "tiny")
    (folder / "modules.json").unlink()
    said: list[str] = []
    bundle = edge.export(folder, tmp_path / "m.edge", weights="fp32", say=said.append)
    form = bundle.manifest.embedding
    assert form is not None and (form.pooling, form.normalized) == ("mean", False)
    assert any("modules.json" in sentence for sentence in said)


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("1_Pooling/config.json", {"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "one of"),
        ("sentence_bert_config.json", {"max_seq_length": "long"}, "max_seq_length"),
        ("config_sentence_transformers.json", {"prompts": {"a": 3}}, "prompts"),
        ("config_sentence_transformers.json", {"prompts": {}, "default_prompt_name": "a"}, "does not have"),
    ],
)
def test_files_that_ask_for_what_no_bundle_has_are_refused(
    tmp_path: Path, file: str, content: dict[str, Any], sentence: str
) -> None:
    folder = tiny_embedder(tmp_path / "tiny")
    write_json(folder / file, content)
    with pytest.raises(CheckpointError, match=sentence):
        edge.export(folder, tmp_path / "m.edge")
    assert not (tmp_path / "m.edge").exists()


@pytest.mark.parametrize(
    ("modules", "sentence"),
    [
        ("[", "not valid JSON"),
        ("{}", "sentence-transformers"),
        ("[3]", "sentence-transformers"),
        ('[{"type": "a.Transformer", "path": ""}, {"type": "b.LSTM", "path": "1_LSTM"}]', "LSTM"),
        ('[{"type": "a.Transformer", "path": ""}, {"type": "b.Pooling", "path": "../../etc"}]', "outside"),
    ],
)
def test_modules_that_are_no_modules_are_refused(tmp_path: Path, modules: str, sentence: str) -> None:
    folder = tiny_embedder(tmp_path / "tiny")
    (folder / "modules.json").write_text(modules)
    with pytest.raises(CheckpointError, match=sentence):
        edge.export(folder, tmp_path / "m.edge")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"weights": "keep"}, "not for models that make vectors"),
        ({"target": "cuda"}, "--target"),
        ({"segments": 1}, "--segments"),
        ({"draft_text": 5}, "--draft-text"),
        ({"block_size": 32}, "--block-size"),
        ({"max_context": 500}, "more than the 66"),
    ],
)
def test_options_of_models_that_answer_are_refused(
    bert: Path, tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises((InputError, ExportError), match=sentence):
        edge.export(bert, tmp_path / "m.edge", **options)
    assert not (tmp_path / "m.edge").exists()


def test_a_manifest_with_half_of_it_is_refused(bert: Path, tmp_path: Path) -> None:
    from edge.manifest import sealed

    root = edge.export(bert, tmp_path / "m.edge", check=False).root
    whole = json.loads((root / "edge.json").read_text())
    for change in (
        {"embedding": None},
        {"kind": "decoder"},
        {"embedding": whole["embedding"] | {"width": 0}},
        {"embedding": whole["embedding"] | {"pooling": "dance"}},
        {"embedding": whole["embedding"] | {"prefix": [10**9]}},
        {"embedding": whole["embedding"] | {"prompt": "nowhere"}},
    ):
        (root / "edge.json").write_text(sealed(whole | change))
        with pytest.raises(EdgeError):
            edge.load(root)
