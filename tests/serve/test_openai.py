"""OpenAI's protocol: what a server answers is what the model says, whole or in a stream."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from running_server import running

import edge
from edge.bundle import Bundle
from edge.runtime.model import Model

PROMPT = "The moon shines"
TALK = [{"role": "user", "content": PROMPT}]
CALLING = {"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f"}}]}
DAMAGED = {
    "empty": b"",
    "cut": b"{",
    "no UTF-8": b"\xff\xfe{}",
    "a list": b"[]",
    "a number": b"3",
    "NaN": b'{"messages": NaN}',
    "deep": b'{"a":' * 100_000,
    "nested": b'{"a":' * 900 + b"1" + b"}" * 900,
    "cut in a list": b'{"messages": [' + b"{}," * 9,
    "a field twice": b'{"messages": [{"role": "user", "role": "user", "content": "x"}]}',
    "endless": b'{"messages": "x", "temperature": 1e999}',
    "a number of 9,000 digits": b'{"messages": "x", "seed": ' + b"9" * 9000 + b"}",
    "half a character": b'{"\\ud800": 1}',
    "half a character in a value": b'{"messages": "\\udc00"}',
}


@pytest.fixture(scope="module")
def bundle(pristine_tiny_bundle: Bundle) -> Bundle:
    return pristine_tiny_bundle


@pytest.fixture(scope="module")
def client(bundle: Bundle) -> Iterator[httpx.Client]:
    with running(bundle) as client:
        yield client


@pytest.fixture(scope="module")
def model(bundle: Bundle) -> Model:
    return edge.load(bundle.root, kind=Model)


def chat(client: httpx.Client, **more: Any) -> Any:
    response = client.post("/v1/chat/completions", json={"messages": TALK, "max_tokens": 12, "temperature": 0} | more)
    assert response.status_code == 200, response.text
    return response.json()


def events(client: httpx.Client, path: str = "/v1/chat/completions", **body: Any) -> list[Any]:
    with client.stream("POST", path, json=body | {"stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_the_models_are_listed(client: httpx.Client, bundle: Bundle) -> None:
    listed = client.get("/v1/models").json()
    assert [each["id"] for each in listed["data"]] == [bundle.root.stem]
    assert client.get(f"/v1/models/{bundle.root.stem}").json()["id"] == bundle.root.stem
    assert client.get("/v1/models/other").status_code == 404


def test_a_name_may_have_slashes_and_colons(bundle: Bundle) -> None:
    name = "org/tiny model:Q4_K_M"
    with running(bundle, names=[name]) as client:
        for path in (name, "org%2Ftiny%20model%3AQ4_K_M", f"{name}:latest"):
            assert client.get(f"/v1/models/{path}").json()["id"] == name
        assert chat(client, model=name)["model"] == name
        assert client.post("/api/show", json={"model": f"{name}:latest"}).status_code == 200
        assert client.get("/v1/models/org/tiny").status_code == 404


def test_an_answer_is_what_the_model_says(client: httpx.Client, model: Model) -> None:
    alone = model.generate([{"role": "user", "content": PROMPT}], max_tokens=12, temperature=0)
    found = chat(client)
    choice = found["choices"][0]
    assert found["object"] == "chat.completion" and choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == alone.text
    assert choice["finish_reason"] == ("length" if alone.finish_reason == "length" else "stop")
    usage = found["usage"]
    assert usage["prompt_tokens"] == alone.prompt_tokens and usage["completion_tokens"] == alone.generated_tokens
    assert usage["total_tokens"] == alone.prompt_tokens + alone.generated_tokens


def test_a_stream_says_the_same_as_the_whole_answer(client: httpx.Client) -> None:
    whole = chat(client)
    came = events(client, messages=TALK, max_tokens=12, temperature=0, stream_options={"include_usage": True})
    assert came[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    deltas = [each["choices"][0] for each in came if each["choices"]]
    assert "".join(each["delta"].get("content", "") for each in deltas) == whole["choices"][0]["message"]["content"]
    assert [each["finish_reason"] for each in deltas if each["finish_reason"]] == [whole["choices"][0]["finish_reason"]]
    counted = came[-1]["usage"]
    assert came[-1]["choices"] == [] and counted["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert len({each["id"] for each in came}) == 1


def test_a_raw_prompt_goes_on(client: httpx.Client, model: Model) -> None:
    alone = model.generate(PROMPT, raw=True, max_tokens=8)
    body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    found = client.post("/v1/completions", json=body).json()
    assert found["object"] == "text_completion" and found["choices"][0]["text"] == alone.text
    came = events(client, "/v1/completions", **body)
    assert "".join(each["choices"][0]["text"] for each in came) == alone.text


def test_a_seed_gives_the_same_answer_and_each_of_several_its_own(client: httpx.Client, model: Model) -> None:
    drawn = {"temperature": 1.5, "seed": 7}
    found = chat(client, **drawn, n=3)
    texts = [choice["message"]["content"] for choice in found["choices"]]
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2]
    talk = [{"role": "user", "content": PROMPT}]
    alone = [model.generate(talk, max_tokens=12, temperature=1.5, seed=7 + i).text for i in range(3)]
    assert texts == alone and len(set(texts)) > 1
    assert chat(client, **drawn)["choices"][0]["message"]["content"] == texts[0]
    assert found["usage"]["completion_tokens"] > chat(client, **drawn)["usage"]["completion_tokens"]


def test_without_a_seed_answers_are_drawn_anew(client: httpx.Client) -> None:
    said = {chat(client, temperature=2)["choices"][0]["message"]["content"] for _ in range(6)}
    assert len(said) > 1


def test_an_answer_ends_before_a_stop_string(client: httpx.Client) -> None:
    whole = chat(client)["choices"][0]["message"]["content"]
    stop = whole[len(whole) // 2 :][:2]
    cut = chat(client, stop=[stop])["choices"][0]
    assert cut["message"]["content"] == whole[: whole.index(stop)] and cut["finish_reason"] == "stop"


def test_an_answer_without_a_length_goes_on_to_the_end_of_the_context(bundle: Bundle) -> None:
    with running(bundle, context=48) as client:
        found = client.post("/v1/completions", json={"prompt": PROMPT, "temperature": 0}).json()
    assert found["choices"][0]["finish_reason"] == "stop" or found["usage"]["total_tokens"] == 49


def test_log_probabilities_are_those_of_the_model(client: httpx.Client) -> None:
    plain, told = chat(client), chat(client, logprobs=True, top_logprobs=3)
    choice = told["choices"][0]
    assert choice["message"] == plain["choices"][0]["message"] and plain["choices"][0]["logprobs"] is None
    content = choice["logprobs"]["content"]
    assert len(content) == told["usage"]["completion_tokens"]
    for each in content:
        likely = [top["logprob"] for top in each["top_logprobs"]]
        assert len(likely) == 3 and likely == sorted(likely, reverse=True)
        assert each["logprob"] == likely[0] <= 0  # the likeliest is taken
        assert bytes(each["bytes"]).decode() == each["token"]
        assert sum(map(math.exp, likely)) <= 1.0001
    streamed = events(client, messages=TALK, max_tokens=12, temperature=0, logprobs=True)
    tokens = [each for event in streamed for each in (event["choices"][0]["logprobs"] or {}).get("content", [])]
    assert [each["logprob"] for each in tokens] == [each["logprob"] for each in content]


def test_places_of_tokens_go_on_in_a_stream(client: httpx.Client) -> None:
    body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "logprobs": 1, "n": 2}
    whole = client.post("/v1/completions", json=body).json()["choices"]
    assert len({*whole[0]["logprobs"]["text_offset"]}) > 1
    streamed: dict[int, list[int]] = {0: [], 1: []}
    for event in events(client, "/v1/completions", **body):
        (choice,) = event["choices"]
        streamed[choice["index"]] += (choice["logprobs"] or {"text_offset": []})["text_offset"]
    assert [*streamed.values()] == [choice["logprobs"]["text_offset"] for choice in whole]


def test_parts_of_a_message_are_one_text(client: httpx.Client) -> None:
    parts = [{"type": "text", "text": "The moon"}, {"type": "text", "text": "shines"}]
    found = chat(client, messages=[{"role": "user", "content": parts}])
    assert found["choices"] == chat(client, messages=[{"role": "user", "content": "The moon\nshines"}])["choices"]


REFUSED = [
    ({}, "messages", "has no messages"),
    ({"messages": []}, "messages", "one message or more"),
    ({"messages": "hello"}, "messages", "must be a list"),
    ({"messages": [{"role": "user"}]}, None, "prompt is empty"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages", "wizard"),
    ({"messages": [{"role": "user", "content": 3}]}, "content", "must be a text"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "content", "image_url"),
    ({"messages": TALK, "temperature": -1}, None, "temperature"),
    ({"messages": TALK, "temperature": "warm"}, None, "temperature"),
    ({"messages": TALK, "top_p": 2, "temperature": 1}, None, "top-p"),
    ({"messages": TALK, "max_tokens": 0}, "max_tokens", "max_tokens"),
    ({"messages": TALK, "n": 1000}, "n", "at most 16"),
    ({"messages": TALK, "stop": [""]}, "stop", "empty"),
    ({"messages": TALK, "stream": "yes"}, "stream", "True or False"),
    ({"messages": TALK, "presence_penalty": 2.5}, "presence_penalty", "from -2 to 2"),
    ({"messages": TALK, "frequency_penalty": "much"}, "frequency_penalty", "from -2 to 2"),
    ({"messages": TALK, "logit_bias": {"1": 500}}, "logit_bias", "from -100 to 100"),
    ({"messages": TALK, "logit_bias": {"99999": 5}}, "logit_bias", "'99999'"),
    ({"messages": TALK, "logit_bias": {"the": 5}}, "logit_bias", "tokens are 0 to"),
    ({"messages": TALK, "logit_bias": [5]}, "logit_bias", "must be an object"),
    ({"messages": TALK, "top_logprobs": 2}, "top_logprobs", "needs logprobs"),
    ({"messages": TALK, "tools": [{"type": "function"}]}, "tools", "has no function"),
    ({"messages": TALK, "response_format": {"type": "poem"}}, "response_format", "poem"),
    ({"messages": TALK, "response_format": {"type": "json_schema"}}, "response_format", "no schema"),
    ({"messages": TALK, "regex": "(["}, None, "cannot be obeyed"),
    ({"messages": TALK, "stop": ["x"] * 17}, "stop", "at most 16 texts"),
    ({"messages": TALK, "stop": ["x" * 1001]}, "stop", "1000 characters"),
    ({"messages": TALK * 2001}, "messages", "at most 2000 messages"),
    ({"messages": [{"role": "user", "content": "x", "reasoning_content": "y"}]}, "messages", "none of the assistant's"),
    ({"messages": [CALLING]}, "messages", "none of the assistant's"),
    ({"messages": TALK, "x" * 5000: 1}, None, "does not know"),
    ({"messages": TALK, "reasoning_effort": "huge"}, "reasoning_effort", "huge"),
    ({"messages": TALK, "reasoning_effort": "low"}, None, "no marks"),
    ({"messages": TALK, "wishes": 3}, "wishes", "does not know 'wishes'"),
    ({"messages": TALK, "stream_options": {"colour": 1}}, "colour", "does not know 'colour'"),
]


@pytest.mark.parametrize(("body", "field", "sentence"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_cannot_be_obeyed_is_refused_by_name(
    client: httpx.Client, body: dict[str, Any], field: str | None, sentence: str
) -> None:
    response = client.post("/v1/chat/completions", json=body)
    error = response.json()["error"]
    assert response.status_code == 400 and sentence in error["message"] and error["type"] == "invalid_request_error"
    if field is not None:
        assert error["param"] == field


def test_labels_of_the_caller_change_nothing(client: httpx.Client) -> None:
    labels = {"user": "me", "metadata": {"a": "b"}, "presence_penalty": 0, "store": False, "logit_bias": {}}
    labels |= {"response_format": {"type": "text"}, "tools": [], "service_tier": "auto", "stream": None}
    labels |= {"prompt_cache_key": "x", "prediction": {"type": "content", "content": "x"}, "modalities": ["text"]}
    assert chat(client, **labels)["choices"] == chat(client)["choices"]


def test_a_model_that_is_not_there_is_named(client: httpx.Client, bundle: Bundle) -> None:
    response = client.post("/v1/chat/completions", json={"messages": TALK, "model": "gpt-4"})
    assert response.status_code == 404 and bundle.root.stem in response.json()["error"]["message"]


def test_a_prompt_over_the_context_is_refused_with_both_numbers(client: httpx.Client, model: Model) -> None:
    text = "the moon " * 400
    body = {"messages": [{"role": "user", "content": text}]}
    response = client.post("/v1/chat/completions", json=body)
    message = response.json()["error"]["message"]
    assert response.status_code == 400 and str(model.engine.context) in message
    assert str(len(model.text.encode_prompt(model.render([{"role": "user", "content": text}])))) in message


@pytest.mark.parametrize("body", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_body_is_refused(client: httpx.Client, body: bytes) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/api/chat", "/api/generate"):
        response = client.post(path, content=body)
        assert response.status_code == 400 and response.json()["error"]


def test_a_body_that_is_too_large_is_refused(client: httpx.Client) -> None:
    response = client.post("/v1/completions", content=b" " * (5 << 20))
    assert response.status_code == 413 and "4 MiB" in response.json()["error"]["message"]


def test_nothing_is_at_other_addresses(client: httpx.Client) -> None:
    for path in ("/v1/nothing", "/../../etc/passwd", "/page.html", "/v1/models/../../etc/passwd"):
        assert client.get(path).status_code == 404
    assert client.get("/v1/chat/completions").status_code == 405


def test_figures_are_counted(client: httpx.Client) -> None:
    def figure(name: str) -> float:
        text = client.get("/metrics").text
        lines = [line for line in text.splitlines() if line.startswith(f"{name}{{")]
        return float(lines[0].split()[-1]) if lines else 0.0

    before = figure("edge_generated_tokens_total")
    used = chat(client, messages=[{"role": "user", "content": "A text that is long enough to be kept."}])["usage"]
    assert figure("edge_generated_tokens_total") == before + used["completion_tokens"]
    assert figure("edge_beginnings_bytes") > 0
    assert client.get("/health").json() == {"status": "ok"}


def test_a_damaged_bundle_is_told_of_without_its_path(pristine_tiny_bundle: Bundle, tmp_path: Path) -> None:
    root = Path(shutil.copytree(pristine_tiny_bundle.root, tmp_path / "damaged.edge"))
    (root / "weights.bin").unlink()
    with running(Bundle(root, pristine_tiny_bundle.manifest)) as client:
        response = client.post("/v1/chat/completions", json={"messages": TALK})
        assert response.status_code == 500 and "log says why" in response.json()["error"]["message"]
        assert str(tmp_path) not in response.text
