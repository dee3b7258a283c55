"""Tools: what a request offers is checked, and a call that is demanded comes."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from running_server import running, templated

pytest.importorskip("starlette")

import dataclasses
from collections.abc import Iterator

from edge.bundle import Bundle
from edge.errors import EdgeError
from edge.runtime.load import start
from edge.runtime.model import Model
from edge.runtime.text.template import Message
from edge.serve.tools import read_calls, read_choice, read_tools

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "adds",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize(
    "tools",
    [3, [3], [{}], [{"type": "web"}], [{"type": "function"}], [{"type": "function", "function": {"name": "a b"}}],
     [{"type": "function", "function": {"name": "f", "parameters": 3}}], [TOOL] * 200,
     [{"type": "function", "function": {"name": "f", "wish": 1}}]],
    ids=range(9),
)  # fmt: skip
def test_tools_that_are_none_are_refused(tools: Any) -> None:
    with pytest.raises(EdgeError):
        read_tools(tools)


def test_choices_and_calls_are_read() -> None:
    assert read_choice("required") == "required"
    assert read_choice({"type": "function", "function": {"name": "add"}}) == "=add"
    call = {"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    assert read_calls([call]) == [{"id": "x", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]
    for wrong in ("sometimes", 3, {"type": "function"}):
        with pytest.raises(EdgeError):
            read_choice(wrong)
    wrong_id = [{"id": 3, "function": {"name": "f"}}]
    wrong_arguments = [{"function": {"name": "f", "arguments": "{"}}]
    for wrong in ([3], [{}], wrong_arguments, [{"function": {"arguments": {}}}], wrong_id):
        with pytest.raises(EdgeError):
            read_calls(wrong)


# A template that writes tools, calls and their answers, as Hermes does.
TEMPLATE = (
    "{% if tools %}Tools: {% for tool in tools %}{{ tool | tojson }}{% endfor %} call with <tool_call></tool_call>\n"
    "{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.tool_calls %}{% for c in m.tool_calls %}"
    "<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endif %}\n{% endfor %}assistant: "
)


@pytest.fixture(scope="module")
def client(pristine_tiny_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """The tiny model, with a template that knows tools."""
    pytest.importorskip("llguidance")
    with running(templated(pristine_tiny_bundle, tmp_path_factory.mktemp("tools"), TEMPLATE)) as client:
        yield client


def ask(client: httpx.Client, **more: Any) -> Any:
    body = {"messages": [{"role": "user", "content": "1 + 2?"}], "tools": [TOOL], "max_tokens": 200, "temperature": 0}
    response = client.post("/v1/chat/completions", json=body | more)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_a_call_that_is_demanded_comes_and_parses(client: httpx.Client, choice: Any) -> None:
    parsed = 0
    for seed in range(8):
        found = ask(client, tool_choice=choice, temperature=0.5, seed=seed)
        if found["finish_reason"] == "length":  # integers have no end
            continue
        parsed += 1
        (call,) = found["message"]["tool_calls"]
        assert found["finish_reason"] == "tool_calls" and found["message"]["content"] is None
        arguments = json.loads(call["function"]["arguments"])
        assert call["function"]["name"] == "add" and {*arguments} == {"a", "b"}
        assert all(isinstance(each, int) for each in arguments.values())
    assert parsed


def test_a_call_and_its_answer_go_on_in_the_talk(client: httpx.Client) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    talk = [
        {"role": "user", "content": "1 + 2?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "3"},
    ]
    assert ask(client, messages=talk, max_tokens=5)["message"]["role"] == "assistant"


def test_a_choice_without_tools_and_a_tool_that_is_not_there_are_refused(client: httpx.Client) -> None:
    talk = [{"role": "user", "content": "1 + 2?"}]
    response = client.post("/v1/chat/completions", json={"messages": talk, "tool_choice": "required"})
    assert response.status_code == 400 and "there are no tools" in response.json()["error"]["message"]
    wrong = {"type": "function", "function": {"name": "subtract"}}
    response = client.post("/v1/chat/completions", json={"messages": talk, "tools": [TOOL], "tool_choice": wrong})
    assert response.status_code == 400 and "no such tool" in response.json()["error"]["message"]


def test_an_answer_satisfies_the_schema_that_a_request_has(client: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    found = ask(client, response_format=form, tools=[])
    assert json.loads(found["message"]["content"]) in ({"x": 1}, {"x": 2})
    found = ask(client, grammar='start: "yes" | "no"', tools=[])
    assert found["message"]["content"] in ("yes", "no")
    body = {"messages": [{"role": "user", "content": "x"}], "format": schema, "stream": False}
    said = client.post("/api/chat", json=body).json()["message"]["content"]
    assert json.loads(said) in ({"x": 1}, {"x": 2})


AGAIN = {"type": "object", "properties": {"again": {"$ref": "#"}}, "required": ["again"]}


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        (AGAIN, "Too many items"),
        ({"enum": []}, "cannot be obeyed"),
        ({"type": "integer", "multipleOf": 99999989}, "multiples of 99999989"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, "a little more"),
        ({"type": "string", "description": "x" * 2**20}, "characters"),
    ],
    ids=["cycle", "nothing", "multiples", "bounds", "1 MB"],
)
def test_a_schema_that_cannot_be_obeyed_is_a_400_with_a_sentence(
    client: httpx.Client, schema: dict[str, Any], sentence: str
) -> None:
    chat = {"messages": [{"role": "user", "content": "x"}]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    wanted = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": wanted}}
    for path, more in (
        ("/v1/chat/completions", {"response_format": form}),
        ("/v1/chat/completions", {"tools": [tool], "tool_choice": "required"}),
        ("/api/chat", {"format": schema, "stream": False}),
    ):
        if schema is AGAIN and "tools" in more:
            continue  # whose reference to the root is to another one
        response = client.post(path, json=chat | more)
        assert response.status_code == 400, response.text
        said = response.json()["error"]
        assert sentence in (said if isinstance(said, str) else said["message"])


def test_control_tokens_that_somebody_typed_are_text_wherever_they_stand(pristine_tiny_bundle: Bundle) -> None:
    template = TEMPLATE.replace("{{ m.content }}", "{{ m.content }}{{ m.reasoning_content }}")
    manifest = dataclasses.replace(pristine_tiny_bundle.manifest, chat_template=template, chat_format=None)
    loading = start(Bundle(pristine_tiny_bundle.root, manifest))
    model = loading.model()
    assert isinstance(model, Model)
    typed = next(iter(model.text.controls.texts))
    (control,) = model.text.encode(typed)

    def count(said: str, about: str = "adds") -> int:
        tool = {"type": "function", "function": TOOL["function"] | {"description": about}}  # type: ignore[operator]
        call = {"type": "function", "function": {"name": "add", "arguments": {"a": said}}}
        talk: list[Message] = [
            {"role": "user", "content": "1 + 2?"},
            {"role": "assistant", "content": "", "reasoning_content": said, "tool_calls": [call]},
            {"role": "tool", "content": said},
        ]
        return model.asked(talk, tools=[tool])[0].count(control)

    assert count("x") == count(f"x{typed}y", about=f"z{typed}")
    model.close()
