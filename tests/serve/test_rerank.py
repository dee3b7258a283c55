"""A server of a model that ranks documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from running_server import running
from tiny_rerankers import DOCUMENTS, QUERY, tiny_reranker

import edge
from edge.bundle import Bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    root = tmp_path_factory.mktemp("models")
    return edge.export(tiny_reranker(root / "tiny-cross"), root / "ranks.edge", check=False)


@pytest.fixture(scope="module")
def client(bundle: Bundle, pristine_tiny_bundle: Bundle) -> Iterator[httpx.Client]:
    with running(bundle, pristine_tiny_bundle) as client:
        yield client


def ask(client: httpx.Client, **given: Any) -> httpx.Response:
    return client.post("/v1/rerank", json={"model": "ranks", "query": QUERY, "documents": DOCUMENTS} | given)


def test_ranking_is_that_of_python(client: httpx.Client, bundle: Bundle) -> None:
    model = edge.load(bundle.root, kind=edge.Reranker)
    found = ask(client).json()
    tokens = model.read(QUERY, DOCUMENTS).tokens
    assert found["model"] == "ranks" and found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    wanted = [{"index": each.index, "relevance_score": each.score} for each in model.rank(QUERY, DOCUMENTS)]
    assert found["results"] == wanted
    assert ask(client, documents=[{"text": each} for each in DOCUMENTS]).json()["results"] == wanted
    assert ask(client, top_n=2).json()["results"] == wanted[:2]
    raw = [each["relevance_score"] for each in ask(client, raw_scores=True).json()["results"]]
    assert raw == [each.score for each in model.rank(QUERY, DOCUMENTS, raw_scores=True)]
    with_texts = ask(client, return_documents=True).json()["results"]
    assert [each["document"]["text"] for each in with_texts] == [DOCUMENTS[each["index"]] for each in wanted]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"query": None}, "has no query"),
        ({"query": 3}, "query"),
        ({"documents": None}, "has no documents"),
        ({"documents": []}, "list of texts"),
        ({"documents": "a"}, "list of texts"),
        ({"documents": [3]}, "A document must be a text"),
        ({"documents": [{"text": "a", "title": "b"}]}, "A document must be a text"),
        ({"documents": ["a"] * 2049}, "at most 2048 documents"),
        ({"documents": ["clock " * 80]}, "takes 66 at most"),
        ({"top_n": 0}, "top_n"),
        ({"rank_fields": ["text"]}, "does not know 'rank_fields'"),
    ],
)
def test_what_cannot_be_obeyed_is_refused(client: httpx.Client, given: dict[str, Any], sentence: str) -> None:
    response = ask(client, **given)
    assert response.status_code == 400 and sentence in response.text


def test_a_long_document_is_cut_where_that_is_asked_for(client: httpx.Client) -> None:
    assert ask(client, documents=["clock " * 80], truncate=True).status_code == 200


def test_each_address_is_for_its_kind_of_model(client: httpx.Client, pristine_tiny_bundle: Bundle) -> None:
    response = client.post("/v1/embeddings", json={"model": "ranks", "input": "a"})
    assert response.status_code == 400 and "/v1/rerank" in response.json()["error"]["message"]
    response = ask(client, model=pristine_tiny_bundle.root.stem)
    assert response.status_code == 400 and "/v1/chat/completions" in response.json()["error"]["message"]
    shown = client.post("/api/show", json={"model": "ranks"}).json()
    assert shown["capabilities"] == ["rerank"]


def test_its_description_is_true(client: httpx.Client) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    found = client.get("/openapi.json").json()
    fields = found["paths"]["/v1/rerank"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    known = {"model", "query", "documents", "top_n", "return_documents", "raw_scores", "truncate", "user"}
    assert fields.keys() == known
    operation = schemathesis.openapi.from_dict(found)["/v1/rerank"]["POST"]
    body = {"model": "ranks", "query": QUERY, "documents": DOCUMENTS, "return_documents": True}
    operation.Case(body=body, media_type="application/json").call_and_validate(base_url=str(client.base_url))
