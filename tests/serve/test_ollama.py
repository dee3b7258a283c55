"""Ollama's protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from running_server import running

import edge
from edge.bundle import Bundle
from edge.runtime.model import Model

PROMPT = "The moon shines"
TALK = [{"role": "user", "content": PROMPT}]
OPTIONS = {"num_predict": 12, "temperature": 0}


@pytest.fixture(scope="module")
def client(pristine_tiny_bundle: Bundle) -> Iterator[httpx.Client]:
    with running(pristine_tiny_bundle) as client:
        yield client


@pytest.fixture(scope="module")
def said(pristine_tiny_bundle: Bundle) -> str:
    model = edge.load(pristine_tiny_bundle.root, kind=Model)
    return model.generate([{"role": "user", "content": PROMPT}], max_tokens=12, temperature=0).text


def post(client: httpx.Client, path: str, **body: Any) -> list[Any]:
    response = client.post(path, json={"model": "tiny", "options": OPTIONS} | body)
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


def test_a_chat_streams_lines_unless_it_is_told_not_to(client: httpx.Client, said: str) -> None:
    (whole,) = post(client, "/api/chat", messages=TALK, stream=False)
    assert whole["message"] == {"role": "assistant", "content": said} and whole["done"] is True
    assert whole["eval_count"] > 0 and whole["prompt_eval_count"] > 0 and whole["done_reason"] in ("stop", "length")
    lines = post(client, "/api/chat", messages=TALK)
    assert "".join(line["message"]["content"] for line in lines) == said
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1]["eval_count"] == whole["eval_count"]


def test_generate_makes_a_chat_of_a_prompt_unless_it_is_raw(client: httpx.Client, said: str) -> None:
    assert "".join(line["response"] for line in post(client, "/api/generate", prompt=PROMPT)) == said
    (raw,) = post(client, "/api/generate", prompt=PROMPT, raw=True, stream=False)
    body = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    assert raw["response"] == client.post("/v1/completions", json=body).json()["choices"][0]["text"]


def test_a_model_is_loaded_and_given_back_on_request(client: httpx.Client) -> None:
    assert post(client, "/api/generate")[0]["done_reason"] == "load"
    assert [each["name"] for each in client.get("/api/ps").json()["models"]] == ["tiny"]
    assert post(client, "/api/generate", keep_alive=0)[0]["done_reason"] == "unload"
    assert client.get("/api/ps").json() == {"models": []}
    assert post(client, "/api/chat", model="tiny:latest", messages=TALK, stream=False)[0]["done"]


def test_the_models_are_described(client: httpx.Client) -> None:
    (listed,) = client.get("/api/tags").json()["models"]
    assert listed["name"] == "tiny" and listed["size"] > 1000 and len(listed["digest"]) == 64
    shown = client.post("/api/show", json={"model": "tiny"}).json()
    assert shown["details"]["family"] == "llama" and "completion" in shown["capabilities"]
    assert client.get("/api/version").json() == {"version": edge.__version__}


def test_options_for_the_machine_change_nothing(client: httpx.Client, said: str) -> None:
    more = {"num_gpu": 99, "num_thread": 2, "use_mmap": True, "num_keep": 4, "repeat_last_n": 64, "mirostat": 0}
    more |= {"mirostat_tau": 5.0, "tfs_z": 1.0, "typical_p": 1.0, "presence_penalty": 0.0}
    (whole,) = post(client, "/api/chat", messages=TALK, stream=False, options=OPTIONS | more)
    assert whole["message"]["content"] == said


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"options": {"mirostat": 2}}, "mirostat is not served"),
        ({"options": {"repeat_last_n": 64, "repeat_penalty": 1.1}}, "repeat_last_n is not served"),
        ({"options": {"wish": 2}}, "does not know 'wish'"),
        ({"options": {"num_ctx": 10**6}}, "num_ctx is 1000000"),
        ({"options": {"temperature": -2}}, "temperature"),
        ({"options": 3}, "must be an object"),
        ({"options": {"num_predict": 0}}, "num_predict"),
        ({"keep_alive": ["x"]}, "keep_alive"),
        ({"format": 3}, "JSON schema"),
        ({"think": 3}, "think must be"),
        ({"stream": 1}, "true or false"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "'wizard'"),
        ({"messages": [{"role": "user", "content": "x", "images": ["abc"]}]}, "images"),
        ({"tools": [{}]}, "has no function"),
        ({"wishes": 1}, "does not know 'wishes'"),
    ],
)
def test_what_cannot_be_obeyed_is_refused(client: httpx.Client, body: dict[str, Any], sentence: str) -> None:
    response = client.post("/api/chat", json={"model": "tiny", "messages": TALK} | body)
    assert response.status_code == 400 and sentence in response.json()["error"]
