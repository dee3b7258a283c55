"""Exporting a model that scores pairs of texts: its head, the frame of a pair, and scores like Torch's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_embedders import tiny_embedder, write_json
from tiny_rerankers import DOCUMENTS, QUERY, logits_of, tiny_reranker

import edge
from edge.errors import CheckpointError, EdgeError, InputError
from edge.golden_vectors import read_vectors


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_reranker(tmp_path_factory.mktemp("models") / "tiny-cross")


def scores(root: Path, documents: list[str] = DOCUMENTS) -> np.ndarray:
    """The logits of documents, in their order."""
    with edge.load(root, kind=edge.Reranker) as model:
        return model.logits(model.read(QUERY, documents))


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("bert", {}),
        ("bert", {"type_vocab_size": 1}),
        ("roberta", {"pad_token_id": 1}),
        ("xlm-roberta", {"pad_token_id": 0, "type_vocab_size": 1, "pair": "[CLS] $A [SEP] [SEP] $B [SEP]"}),
        ("distilbert", {"dim": 64, "hidden_dim": 96, "n_layers": 2, "n_heads": 4}),
        ("mpnet", {"pad_token_id": 1}),
        ("modernbert", {"local_attention": 6, "num_hidden_layers": 3, "classifier_pooling": "cls"}),
        ("modernbert", {"local_attention": 6, "classifier_pooling": "mean", "classifier_bias": True}),
    ],
)
def test_scores_are_those_of_transformers(tmp_path: Path, kind: str, config: dict[str, Any]) -> None:
    folder = tiny_reranker(tmp_path / kind, kind, **config)
    bundle = edge.export(folder, tmp_path / "m.edge", weights="fp32")
    assert bundle.manifest.kind == "reranker" and bundle.manifest.quality["score_difference_max"] < 1e-4
    wanted = logits_of(folder, QUERY, DOCUMENTS)
    assert np.ptp(wanted) > 0.02  # else every score would do
    np.testing.assert_allclose(scores(bundle.root), wanted, atol=1e-4)


@pytest.mark.parametrize(("weights", "apart"), [("int8", 0.1), ("int4", 1.0)])
def test_rounded_scores_are_near(bert: Path, tmp_path: Path, weights: str, apart: float) -> None:
    root = edge.export(bert, tmp_path / "m.edge", weights=weights).root
    np.testing.assert_allclose(scores(root), logits_of(bert, QUERY, DOCUMENTS), atol=apart)


def test_the_manifest_says_how_a_pair_is_read(bert: Path, tmp_path: Path) -> None:
    bundle = edge.export(bert, tmp_path / "m.edge")
    form = bundle.manifest.embedding
    assert form is not None and form.pair is not None and (form.width, form.pooling) == (1, "cls")
    assert (form.prefix, form.pair.between, form.suffix, form.pair.types) == ([2], [3], [3], True)
    golden = read_vectors(bundle)
    assert len(golden.cases) == 4
    assert all(case.ids[case.second - 1] == 3 and len(case.vector) == 1 for case in golden.cases)


def test_a_tokenizer_that_names_its_inputs_decides_about_types(bert: Path, tmp_path: Path) -> None:
    folder = tiny_reranker(tmp_path / "tiny")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    write_json(folder / "tokenizer_config.json", settings | {"model_input_names": ["input_ids", "attention_mask"]})
    form = edge.export(folder, tmp_path / "m.edge", weights="fp32").manifest.embedding
    assert form is not None and form.pair is not None and not form.pair.types


def test_a_cross_encoder_of_sentence_transformers_is_one_too(tmp_path: Path) -> None:
    folder = tiny_reranker(tmp_path / "tiny")
    module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}
    (folder / "modules.json").write_text(json.dumps([module]))
    assert edge.export(folder, tmp_path / "m.edge", check=False).manifest.kind == "reranker"


def test_a_classifier_of_several_classes_is_none(tmp_path: Path) -> None:
    folder = tiny_reranker(tmp_path / "tiny", num_labels=3)
    said: list[str] = []
    assert edge.export(folder, tmp_path / "m.edge", check=False, say=said.append).manifest.kind == "embedder"
    assert any("mean of its tokens" in sentence for sentence in said)


def test_a_tokenizer_that_parts_no_pair_is_refused(tmp_path: Path) -> None:
    folder = tiny_reranker(tmp_path / "tiny", pair=None)
    with pytest.raises(CheckpointError, match="no token between the texts of a pair"):
        edge.export(folder, tmp_path / "m.edge")
    assert not (tmp_path / "m.edge").exists()


def test_a_head_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tiny_reranker(tmp_path / "tiny")
    tensors = load_file(folder / "model.safetensors")
    del tensors["bert.pooler.dense.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lacks pooler\.dense\.weight"):
        edge.export(folder, tmp_path / "m.edge")


def test_options_of_models_that_answer_are_refused(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--draft-text is for models that do"):
        edge.export(bert, tmp_path / "m.edge", draft_text=5)


def test_a_manifest_with_half_of_it_is_refused(bert: Path, tmp_path: Path) -> None:
    from edge.manifest import sealed

    root = edge.export(bert, tmp_path / "m.edge", check=False).root
    whole = json.loads((root / "edge.json").read_text())
    form = whole["embedding"]
    for change in (
        {"kind": "embedder"},
        {"embedding": form | {"pair": None}},
        {"embedding": form | {"width": 2}},
        {"embedding": form | {"pair": form["pair"] | {"between": [10**9]}}},
        {"embedding": form | {"pair": form["pair"] | {"types": False}}},
    ):
        (root / "edge.json").write_text(sealed(whole | change))
        with pytest.raises(EdgeError):
            edge.load(root)
    vectors = tiny_embedder(root.parent / "vectors")
    bundle = edge.export(vectors, root.parent / "v.edge", check=False)
    about = json.loads((bundle.root / "edge.json").read_text())
    changed = {"kind": "reranker", "embedding": about["embedding"] | {"pair": form["pair"], "width": 1}}
    (bundle.root / "edge.json").write_text(sealed(about | changed))
    with pytest.raises(EdgeError):
        edge.load(bundle.root)
