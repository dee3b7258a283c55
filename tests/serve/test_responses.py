"""OpenAI's Responses API: a response is the chat's answer in its own form, and its stream ends with the same."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from running_server import running
from scripted_worker import Said, ScriptedWorker

from edge.bundle import Bundle
from edge.errors import BundleError, EdgeError
from edge.runtime.decode.answer import FinishReason
from edge.serve.hold import Hold

PROMPT = "The moon shines"
TOOL = {
    "type": "function",
    "name": "add",
    "description": "adds",
    "strict": True,
    "parameters": {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]},
}
# A template that writes all that a message may have.
TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %} call with <tool_call></tool_call>{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.reasoning_content }}|{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}\n{% endfor %}"
    "assistant: "
)


@pytest.fixture(scope="module")
def bundle(pristine_tiny_bundle: Bundle) -> Bundle:
    manifest = dataclasses.replace(pristine_tiny_bundle.manifest, chat_template=TEMPLATE, chat_format=None)
    return Bundle(pristine_tiny_bundle.root, manifest)


@pytest.fixture(scope="module")
def client(bundle: Bundle) -> Iterator[httpx.Client]:
    with running(bundle) as client:
        yield client


def respond(client: httpx.Client, **more: Any) -> Any:
    response = client.post("/v1/responses", json={"input": PROMPT, "max_output_tokens": 12, "temperature": 0} | more)
    assert response.status_code == 200, response.text
    return response.json()


def events(client: httpx.Client, **more: Any) -> list[Any]:
    """The events of a stream, each of which must say its type twice and have the next number."""
    body = {"input": PROMPT, "max_output_tokens": 12, "temperature": 0, "stream": True} | more
    with client.stream("POST", "/v1/responses", json=body) as response:
        assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
        blocks = "".join(response.iter_text()).split("\n\n")
    assert blocks.pop() == ""
    found = []
    for number, block in enumerate(blocks):
        kind, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert event["sequence_number"] == number and kind == f"event: {event['type']}"
        found.append(event)
    return found


def plain(response: Any) -> Any:
    """A response without its names and times."""
    output = [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in response["output"]]
    left = {k: v for k, v in response.items() if k not in ("id", "created_at", "completed_at")}
    left["usage"] = {k: v for k, v in left["usage"].items() if k != "input_tokens_details"}  # what was known before
    return left | {"output": output}


def text_of(response: Any) -> str:
    (item,) = response["output"]
    (part,) = item["content"]
    assert (item["type"], item["role"], part["type"]) == ("message", "assistant", "output_text")
    return str(part["text"])


def scripted(
    monkeypatch: pytest.MonkeyPatch,
    *pieces: Said,
    finish: FinishReason = "stop",
    error: EdgeError | None = None,
) -> ScriptedWorker:
    worker = ScriptedWorker(pieces, finish, error)
    monkeypatch.setattr("edge.serve.models.Models.worker", lambda self, name: (worker, Hold(lambda: None)))
    return worker


def test_a_response_says_what_a_chat_says(client: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 12, "temperature": 0}
    chat = client.post("/v1/chat/completions", json=body).json()
    found = respond(client, metadata={"a": "b"})
    assert text_of(found) == chat["choices"][0]["message"]["content"]
    assert (found["object"], found["metadata"], found["store"]) == ("response", {"a": "b"}, False)
    assert found["status"] == ("incomplete" if chat["choices"][0]["finish_reason"] == "length" else "completed")
    used, counted = found["usage"], chat["usage"]
    assert (used["input_tokens"], used["output_tokens"]) == (counted["prompt_tokens"], counted["completion_tokens"])
    assert used["total_tokens"] == counted["total_tokens"]


def test_a_stream_has_its_events_in_order_and_ends_with_the_whole_response(client: httpx.Client) -> None:
    came = events(client)
    kinds = [event["type"].removeprefix("response.") for event in came]
    deltas = [event["delta"] for event in came if event["type"] == "response.output_text.delta"]
    ends = ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    begins = ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds == [*begins, *["output_text.delta"] * len(deltas), *ends] and deltas
    assert "".join(deltas) == came[-4]["text"] == text_of(came[-1]["response"])
    assert came[-2]["item"] == came[-1]["response"]["output"][0]
    assert plain(came[-1]["response"]) == plain(respond(client))
    assert came[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [event["response"]["status"] for event in came[:2]] == ["in_progress"] * 2


def test_thoughts_are_an_item_of_their_own(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, ("", ""), ("", "hm, "), ("", "well"), ("", ""), ("Yes", None), (".", None), ("", None))
    came = events(client)
    assert [event["type"].removeprefix("response.") for event in came] == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("reasoning_text.delta", "reasoning_text.delta", "reasoning_text.done", "content_part.done"),
        *("output_item.done", "output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    thoughts, words = came[-1]["response"]["output"]
    assert (thoughts["type"], thoughts["summary"]) == ("reasoning", [])
    assert thoughts["content"] == [{"type": "reasoning_text", "text": "hm, well"}]
    assert words["content"][0]["text"] == "Yes."
    assert [event["output_index"] for event in came[2:-1]] == [0] * 7 + [1] * 7
    assert came[-1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"] == 4
    assert plain(respond(client)) == plain(came[-1]["response"])


def test_calls_come_after_the_words_before_them(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    called = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    scripted(monkeypatch, ("Well. ", None), (called, None), (called, None), ("", None))
    came = events(client, tools=[TOOL])
    words, first, second = came[-1]["response"]["output"]
    assert words["content"][0]["text"] == "Well. "
    assert first["call_id"] != second["call_id"] and first["id"] != second["id"]
    for place, item in ((1, first), (2, second)):
        own = [event for event in came if event.get("output_index") == place]
        assert [event["type"].removeprefix("response.") for event in own] == [
            *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done"),
            "output_item.done",
        ]
        assert own[0]["item"]["arguments"] == "" and own[1]["delta"] == own[2]["arguments"] == item["arguments"]
        assert (item["type"], item["name"], json.loads(item["arguments"])) == ("function_call", "add", {"a": 1})
        assert own[3]["item"] == item
    assert plain(respond(client, tools=[TOOL])) == plain(came[-1]["response"])


def test_an_answer_that_fails_ends_its_stream_with_a_sentence(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, ("Well", None), error=BundleError("/secret/path is damaged"))
    last = events(client)[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"]["code"] == "server_error" and "secret" not in json.dumps(last)
    assert client.post("/v1/responses", json={"input": PROMPT}).status_code == 500


def test_an_empty_answer_is_an_empty_message_and_thoughts_that_are_cut_are_none(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, ("", None))
    assert text_of(respond(client)) == ""
    scripted(monkeypatch, ("", "hm"), finish="length")
    found = respond(client)
    assert [item["type"] for item in found["output"]] == ["reasoning"] and found["status"] == "incomplete"


def test_items_become_the_messages_of_a_conversation(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = scripted(monkeypatch, ("Yes.", None))
    first = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'}
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "1 + 2?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "phase": None,
         "content": [{"type": "output_text", "text": "Well.", "annotations": [], "logprobs": []}]},
        first | {"id": "fc_1", "status": "completed"},
        first | {"call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "3"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "4"}]},
        {"role": "assistant", "content": "It is 3."},
        {"role": "assistant", "content": "Or 4."},
        {"role": "user", "content": "So?"},
    ]  # fmt: skip
    respond(client, input=items, instructions="Speak English.")
    (messages,) = worker.prompts
    assert [(message["role"], message["content"]) for message in messages] == [
        ("system", "Speak English.\n\nBe brief."),
        ("user", "1 + 2?"),
        ("assistant", "Well."),
        ("tool", "3"),
        ("tool", "4"),
        ("assistant", "It is 3."),
        ("assistant", "Or 4."),
        ("user", "So?"),
    ]
    assert messages[2]["reasoning_content"] == "hm"
    calls = [call["function"] for call in messages[2]["tool_calls"]]
    assert calls == [{"name": "add", "arguments": {"a": 1}}] * 2


def test_what_a_response_said_is_taken_back(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    called = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    worker = scripted(monkeypatch, ("", "hm"), ("Well. ", None), (called, None), ("", None))
    output = respond(client, tools=[TOOL])["output"]
    done = {"type": "function_call_output", "call_id": output[-1]["call_id"], "output": ""}
    respond(client, tools=[TOOL], input=[{"role": "user", "content": "1 + 2?"}, *output, done])
    assert [message["role"] for message in worker.prompts[-1]] == ["user", "assistant", "tool"]
    assert worker.prompts[-1][1]["reasoning_content"] == "hm"


def test_a_call_that_is_demanded_comes_and_parses(client: httpx.Client) -> None:
    pytest.importorskip("llguidance")
    for choice in ("required", {"type": "function", "name": "add"}):
        found = respond(client, tools=[TOOL], tool_choice=choice, max_output_tokens=200)
        (call,) = found["output"]
        assert (call["type"], call["name"], found["status"]) == ("function_call", "add", "completed")
        assert json.loads(call["arguments"])["a"] in (1, 2)
        assert found["tool_choice"] == choice and found["tools"][0]["name"] == "add"


def test_an_answer_has_the_form_that_is_asked_for(client: httpx.Client) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": False}
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    found = respond(client, text={"format": form, "verbosity": None}, max_output_tokens=100)
    assert json.loads(text_of(found)) in ({"x": 1}, {"x": 2})
    assert found["text"]["format"]["schema"] == schema and found["text"]["format"]["name"] == "x"


def test_log_probabilities_are_told_where_they_are_included(client: httpx.Client) -> None:
    more = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    told = respond(client, **more)["output"][0]["content"][0]["logprobs"]
    assert len(told) == 12 and all(math.exp(each["logprob"]) <= 1.0001 for each in told)
    assert all(len(each["top_logprobs"]) == 2 for each in told)
    came = [event for event in events(client, **more) if event["type"] == "response.output_text.delta"]
    assert [each["logprob"] for event in came for each in event["logprobs"]] == [each["logprob"] for each in told]
    assert respond(client)["output"][0]["content"][0]["logprobs"] == []


REFUSED = [
    ({"input": None}, "input", "has no input"),
    ({"input": []}, "input", "one item or more"),
    ({"input": {}}, "input", "must be a text, or a list"),
    ({"input": [3]}, "input", "must be an object"),
    ({"input": ""}, None, "prompt is empty"),
    ({"input": [{"role": "user", "content": "x"}] * 2001}, "input", "at most 2000 items"),
    ({"input": [{"role": "wizard", "content": "x"}]}, "input", "wizard"),
    ({"input": [{"role": "user", "content": "x", "wish": 1}]}, "wish", "does not know 'wish' of item 0"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "content", "input_image"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input", "item_reference"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{"}]}, "input", "a JSON object"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "3"}]}, "input", "which is not there"),
    ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]}, "encrypted_content", "not encrypted"),
    ({"store": True}, "store", "Nothing is stored"),
    ({"previous_response_id": "resp_1"}, "previous_response_id", "Nothing is stored"),
    ({"conversation": "conv_1"}, "conversation", "Nothing is stored"),
    ({"background": True}, "background", "somebody waits"),
    ({"truncation": "auto"}, "truncation", "No input is cut"),
    ({"include": ["web_search_call.results"]}, "include", "web_search_call"),
    ({"top_logprobs": 2}, "top_logprobs", "under include"),
    ({"metadata": {"a": 1}}, "metadata", "texts"),
    ({"max_output_tokens": 0}, "max_output_tokens", "from 1"),
    ({"max_tokens": 3}, "max_tokens", "does not know 'max_tokens'"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "huge"),
    ({"reasoning": {"effort": "low"}}, None, "no marks"),
    ({"reasoning": {"summary": "detailed"}}, "summary", "without a summary"),
    ({"text": {"verbosity": "low"}}, "verbosity", "verbosity"),
    ({"text": {"format": {"type": "poem"}}}, "format", "poem"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "format", "no schema"),
    ({"text": {"format": []}}, "format", "text, json_object or json_schema"),
    ({"tools": [{"type": "web_search"}]}, "type", "must be a function"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "function", "does not know 'function'"),
    ({"tools": {"type": "function"}}, "tools", "must be a list"),
    ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
    ({"tool_choice": {"type": "web_search"}, "tools": [TOOL]}, "tool_choice", "web_search"),
    ({"stream": "yes"}, "stream", "True or False"),
    ({"n": 2}, "n", "does not know 'n'"),
]


@pytest.mark.parametrize(("more", "field", "sentence"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_cannot_be_obeyed_is_refused_by_name(
    client: httpx.Client, more: dict[str, Any], field: str | None, sentence: str
) -> None:
    response = client.post("/v1/responses", json={"input": PROMPT, "max_output_tokens": 2} | more)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert sentence in error["message"] and (field is None or error["param"] == field)


def test_what_agents_send_with_every_request_is_taken(client: httpx.Client) -> None:
    labels = {"store": False, "previous_response_id": None, "include": ["reasoning.encrypted_content"], "user": "me"}
    labels |= {"parallel_tool_calls": True, "prompt_cache_key": "x", "service_tier": "auto", "truncation": "disabled"}
    labels |= {"reasoning": {"effort": None, "summary": "auto"}, "text": {"format": {"type": "text"}}, "tools": []}
    assert text_of(respond(client, **labels)) == text_of(respond(client))
