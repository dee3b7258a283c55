"""A server of a model that makes vectors, in OpenAI's protocol and in Ollama's."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from running_server import running
from tiny_embedders import TEXTS, tiny_embedder

import edge
from edge.bundle import Bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    root = tmp_path_factory.mktemp("models")
    folder = tiny_embedder(root / "tiny-bert", length=32, prompts={"query": "the train: "})
    return edge.export(folder, root / "vectors.edge", check=False)


@pytest.fixture(scope="module")
def client(bundle: Bundle, pristine_tiny_bundle: Bundle) -> Iterator[httpx.Client]:
    with running(bundle, pristine_tiny_bundle) as client:
        yield client


def ask(client: httpx.Client, given: Any, address: str = "/v1/embeddings", **more: Any) -> httpx.Response:
    return client.post(address, json={"model": "vectors", "input": given} | more)


def vectors(response: httpx.Response) -> np.ndarray:
    assert response.status_code == 200, response.text
    return np.array([each["embedding"] for each in response.json()["data"]], np.float32)


def test_vectors_are_those_of_python(client: httpx.Client, bundle: Bundle) -> None:
    model = edge.load(bundle.root, kind=edge.Embedder)
    response = ask(client, TEXTS)
    np.testing.assert_array_equal(vectors(response), model.embed(TEXTS))
    tokens = model.read(TEXTS).tokens
    assert response.json()["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    np.testing.assert_array_equal(vectors(ask(client, TEXTS[0])), model.embed(TEXTS[:1]))
    np.testing.assert_array_equal(vectors(ask(client, TEXTS, dimensions=9)), model.embed(TEXTS, dimensions=9))
    np.testing.assert_array_equal(vectors(ask(client, TEXTS, prompt="query")), model.embed(TEXTS, prompt="query"))


def test_token_ids_are_those_of_a_text(client: httpx.Client, bundle: Bundle) -> None:
    model = edge.load(bundle.root, kind=edge.Embedder)
    ids = [each[1:-1] for each in model.read(TEXTS).ids]
    np.testing.assert_array_equal(vectors(ask(client, ids)), model.embed(TEXTS))
    np.testing.assert_array_equal(vectors(ask(client, ids[0])), model.embed(TEXTS[:1]))


def test_base64_is_float32(client: httpx.Client) -> None:
    (found,) = ask(client, TEXTS[0], encoding_format="base64").json()["data"]
    made = np.frombuffer(base64.b64decode(found["embedding"]), "<f4")
    np.testing.assert_array_equal(made, vectors(ask(client, TEXTS[0]))[0])


def test_ollamas_protocol(client: httpx.Client) -> None:
    plain = vectors(ask(client, TEXTS))
    found = ask(client, TEXTS, "/api/embed").json()
    np.testing.assert_array_equal(np.array(found["embeddings"], np.float32), plain)
    assert found["prompt_eval_count"] > 0 and found["model"] == "vectors"
    assert ask(client, "", "/api/embed").json()["embeddings"] == []
    one = client.post("/api/embeddings", json={"model": "vectors", "prompt": TEXTS[0]}).json()
    np.testing.assert_array_equal(np.array(one["embedding"], np.float32), plain[0])
    shown = client.post("/api/show", json={"model": "vectors"}).json()
    assert shown["capabilities"] == ["embedding"]


@pytest.mark.parametrize("address", ["/v1/embeddings", "/api/embed"])
@pytest.mark.parametrize(
    ("given", "more", "sentence"),
    [
        ("clock " * 40, {}, "42 tokens, and tiny-bert takes 32 at most"),
        (["a", 3], {}, "input must be a text"),
        ([[1.5]], {}, "input must be a text"),
        ([[]], {}, "input must be a text"),
        ([10**12], {}, "the vocabulary has"),
        ([-1], {}, "the vocabulary has"),
        (["a"] * 2049, {}, "at most 2048 texts"),
        ("a", {"dimensions": 65}, "64 numbers"),
        ("a", {"dimensions": "many"}, "dimensions"),
        ("a", {"prompt": "nowhere"}, "has no prompt"),
        ("a", {"wish": 1}, "does not know 'wish'"),
    ],
)
def test_what_cannot_be_obeyed_is_refused(
    client: httpx.Client, address: str, given: Any, more: dict[str, Any], sentence: str
) -> None:
    response = ask(client, given, address, **more)
    assert response.status_code == 400 and sentence in response.text
    if "tokens" in sentence:
        assert ask(client, given, address, truncate=True).status_code == 200


def test_each_address_is_for_its_kind_of_model(client: httpx.Client, pristine_tiny_bundle: Bundle) -> None:
    response = client.post(
        "/v1/chat/completions", json={"model": "vectors", "messages": [{"role": "user", "content": "x"}]}
    )
    assert response.status_code == 400 and "/v1/embeddings" in response.json()["error"]["message"]
    response = ask(client, "a", model=pristine_tiny_bundle.root.stem)
    assert response.status_code == 400 and "/v1/chat/completions" in response.json()["error"]["message"]
    assert ask(client, None).status_code == 400 and ask(client, "a", encoding_format="int8").status_code == 400
