"""`Reranker`: scores that do not depend on their neighbours, order, lengths, memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_rerankers import DOCUMENTS, QUERY, logits_of, tiny_reranker

import edge
from edge.bundle import Bundle
from edge.errors import InputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_reranker(tmp_path_factory.mktemp("models") / "tiny-cross")


@pytest.fixture(scope="module")
def bundle(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return edge.export(folder, tmp_path_factory.mktemp("bundles") / "tiny.edge", weights="fp32", check=False)


@pytest.fixture(scope="module")
def model(bundle: Bundle) -> edge.Reranker:
    return edge.load(bundle.root, kind=edge.Reranker)


def test_the_best_document_is_first(model: edge.Reranker, folder: Path) -> None:
    logits = logits_of(folder, QUERY, DOCUMENTS)
    found = model.rank(QUERY, DOCUMENTS)
    assert [each.index for each in found] == np.argsort(-logits, kind="stable").tolist()
    for each in found:
        assert each.score == pytest.approx(1 / (1 + np.exp(-logits[each.index])), abs=1e-4)
    raw = model.rank(QUERY, DOCUMENTS, raw_scores=True)
    np.testing.assert_allclose([each.score for each in raw], logits[[each.index for each in raw]], atol=1e-4)
    assert model.rank(QUERY, DOCUMENTS, top_n=2) == found[:2] and model.rank(QUERY, DOCUMENTS, top_n=99) == found
    assert model.rank(QUERY, []) == []


def test_a_score_does_not_depend_on_its_neighbours(folder: Path, tmp_path: Path) -> None:
    model = edge.load(edge.export(folder, tmp_path / "tiny.edge", check=False).root, kind=edge.Reranker)
    if not model.engine.independent:
        pytest.skip("edge-lm-kernels do not run here")
    words = " ".join(DOCUMENTS).split()
    documents = [" ".join(words[i : i + n]) for i in range(7) for n in range(1, 12)]
    together = {each.index: each.score for each in model.rank(QUERY, documents)}
    assert together == {i: model.rank(QUERY, [document])[0].score for i, document in enumerate(documents)}


def test_pairs_of_one_length_with_different_parts_are_told_apart(model: edge.Reranker, folder: Path) -> None:
    read = [model.read("old clock", ["the ball"]).pairs[0], model.read("old", ["clock the ball"]).pairs[0]]
    assert len(read[0].ids) == len(read[1].ids) and read[0].second != read[1].second
    wanted = [logits_of(folder, "old clock", ["the ball"])[0], logits_of(folder, "old", ["clock the ball"])[0]]
    np.testing.assert_allclose(model.run(read)[:, 0], wanted, atol=1e-4)


def test_what_is_too_long_is_refused_or_the_document_cut(model: edge.Reranker) -> None:
    long = " ".join(["clock"] * 70)
    with pytest.raises(InputError, match=r"The query with document 2 has 75 tokens, and tiny-cross takes 66 at most"):
        model.rank("old ball", ["a", long])
    read = model.read("old ball", ["a", long], edge.RerankOptions(truncate=True))
    assert read.cut == 1 and len(read.pairs[1].ids) == 66 and read.pairs[1].ids[-1] == 3
    with pytest.raises(InputError, match="The query has 73 tokens"):
        model.rank(long, ["a"], truncate=True)


def test_control_tokens_that_somebody_typed_are_text(model: edge.Reranker) -> None:
    (pair,) = model.read("a [SEP] b", ["c [SEP] d"]).pairs
    assert list(pair.ids).count(3) == 2


@pytest.mark.parametrize(
    ("query", "documents"), [(3, ["a"]), (None, ["a"]), ("a", "b"), ("a", [3]), ("a", b"b"), ("a", {"b": 1})]
)
def test_what_is_no_text_is_refused(model: edge.Reranker, query: object, documents: object) -> None:
    with pytest.raises(InputError, match="reads texts, not|texts in a list"):
        model.rank(query, documents)  # type: ignore[arg-type]


def test_loading_knows_the_kind(bundle: Bundle) -> None:
    with pytest.raises(InputError, match="loaded as a Reranker, and not as a Embedder"):
        edge.load(bundle.root, kind=edge.Embedder)
    with pytest.raises(InputError, match="for models that answer"):
        edge.load(bundle.root, speculate="off")
    with pytest.raises(InputError, match="smallest budget that would do is"):
        edge.load(bundle.root, memory="1MB")
    with edge.load(bundle.root, kind=edge.Reranker, context=20) as model:
        assert model.engine.room.context == 20
    with pytest.raises(InputError, match="closed"):
        model.rank("a", ["b"])
