"""gpt-oss's channels in both protocols: thoughts, words and calls of tools each in their field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from harmony import ANSWER, OPEN, START, says_by_word, tiny_harmony
from running_server import running

import edge
from edge.bundle import Bundle
from edge.runtime.model import Model

pytest.importorskip("starlette")

NUMBER = {"type": "integer"}
ADD = {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}}}
TOOL = {"type": "function", "function": ADD}
CALL = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1, "b": 2}<|call|>'
SAID = {
    "moon": f"{OPEN}round?<|end|>{START}{ANSWER}It is round.<|return|>",
    "sun": f"{ANSWER}It is hot.<|return|>",
    "sum": f"{OPEN}add?<|end|>{START}<|channel|>commentary<|message|>I add.<|end|>{START}{CALL}",
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("harmony")
    tiny_harmony(folder / "tiny")
    return edge.export(folder / "tiny", folder / "tiny.edge", weights="int8", check=False)


@pytest.fixture(scope="module")
def client(bundle: Bundle) -> Iterator[httpx.Client]:
    with running(bundle) as client:
        yield client


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch, bundle: Bundle) -> list[str]:
    """The prompts that the model read, whose answers are scripted."""
    says_by_word(monkeypatch, bundle, SAID)
    found, asked = [], Model.asked

    def noting(self: Model, *args: Any, **more: Any) -> Any:
        ids, block = asked(self, *args, **more)
        found.append("".join(self.text.token(i) or "" for i in ids).replace("\u0120", " "))
        return ids, block

    monkeypatch.setattr(Model, "asked", noting)
    return found


def said(client: httpx.Client, words: str, path: str = "/v1/chat/completions", **more: Any) -> Any:
    response = client.post(path, json={"messages": [{"role": "user", "content": words}], **more})
    assert response.status_code == 200, response.text
    return response.json()


def test_a_stream_has_thoughts_and_words_in_their_fields(client: httpx.Client, prompts: list[str]) -> None:
    body = {"messages": [{"role": "user", "content": "the moon"}], "stream": True}
    deltas: list[dict[str, Any]] = []
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                deltas += [choice["delta"] for choice in json.loads(line[6:])["choices"]]
    thoughts = [delta["reasoning_content"] for delta in deltas if delta.get("reasoning_content")]
    words = [delta["content"] for delta in deltas if delta.get("content")]
    assert ("".join(thoughts), "".join(words)) == ("round?", "It is round.") and len(words) > 1
    assert not any(delta.get("content") and delta.get("reasoning_content") for delta in deltas)


def test_an_answer_without_thoughts_has_none(client: httpx.Client, prompts: list[str]) -> None:
    message = said(client, "the sun")["choices"][0]["message"]
    assert message["content"] == "It is hot." and "reasoning_content" not in message
    found = said(client, "the moon", "/api/chat", stream=False)
    assert (found["message"]["content"], found["message"]["thinking"]) == ("It is round.", "round?")


@pytest.mark.parametrize(
    ("effort", "told", "end"),
    [("minimal", "low", OPEN), ("low", "low", OPEN), ("high", "high", OPEN), ("none", "medium", ANSWER)],
)
def test_the_effort_goes_to_the_template(
    client: httpx.Client, prompts: list[str], monkeypatch: pytest.MonkeyPatch, bundle: Bundle, effort: str, told: str,
    end: str,
) -> None:  # fmt: skip
    says_by_word(monkeypatch, bundle, {"moon": "Well.<|return|>"})  # in the channel that the prompt opens
    message = said(client, "the moon", reasoning_effort=effort)["choices"][0]["message"]
    assert f"Reasoning: {told}" in prompts[-1] and prompts[-1].endswith(START + end)
    assert message.get("content" if effort == "none" else "reasoning_content") == "Well."


def test_ollamas_switch_is_no_effort(client: httpx.Client, prompts: list[str]) -> None:
    said(client, "the sun", "/api/chat", stream=False, think=True)
    assert "Reasoning: medium" in prompts[-1] and prompts[-1].endswith(OPEN)
    said(client, "the sun", "/api/chat", stream=False, think="low")
    assert "Reasoning: low" in prompts[-1]


@pytest.mark.parametrize("effort", [None, "none"])
def test_a_call_of_the_commentary_is_a_call(client: httpx.Client, prompts: list[str], effort: str | None) -> None:
    choice = said(client, "the sum", tools=[TOOL], **({} if effort is None else {"reasoning_effort": effort}))
    (choice,) = choice["choices"]
    message, (call,) = choice["message"], choice["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("add", {"a": 1, "b": 2})
    assert choice["finish_reason"] == "tool_calls"
    assert (message["reasoning_content"], message["content"].strip()) == ("add?", "I add.")
    assert prompts[-1].endswith(f"the sum<|end|>{START}"), "a channel that is open can call nothing"
    assert f"Reasoning: {'medium' if effort is None else 'low'}" in prompts[-1]


def test_a_call_and_its_answer_go_on_in_the_talk(client: httpx.Client, prompts: list[str]) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    talk = [
        {"role": "user", "content": "1 + 2?"},
        {"role": "assistant", "content": "I add.", "reasoning_content": "add?", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "as hot as the sun"},
    ]
    response = client.post("/v1/chat/completions", json={"messages": talk, "tools": [TOOL]})
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["message"]["content"] == "It is hot."
    again = f'{OPEN}add?<|end|>{START} to=functions.add<|channel|>commentary json<|message|>{{"a": 1, "b": 2}}<|call|>'
    assert again in prompts[-1], "its thoughts stay until it has answered"


def test_a_call_that_is_demanded_comes(client: httpx.Client, prompts: list[str], monkeypatch: Any) -> None:
    pytest.importorskip("llguidance")
    monkeypatch.undo()
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "pick", "description": "picks", "parameters": schema}}
    (choice,) = said(client, "the sum", tools=[tool], tool_choice="required")["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "pick" and json.loads(call["function"]["arguments"])["a"] in (1, 2)
    assert choice["message"]["content"] is None


def test_tools_and_thoughts_are_among_its_capabilities(client: httpx.Client, bundle: Bundle) -> None:
    found = client.post("/api/show", json={"model": bundle.root.stem}).json()["capabilities"]
    assert {"tools", "thinking"} <= {*found}
