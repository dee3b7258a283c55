"""Calls of tools, in the forms in which models write them and read them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from running_server import running, templated

pytest.importorskip("starlette")
pytest.importorskip("llguidance")

from edge.bundle import Bundle
from edge.runtime.text.template import ChatTemplate, Message
from edge.serve import tool_talk
from edge.serve.calls import HERMES, MISTRAL, Calls, Marks
from edge.serve.tool_talk import told

ADD = {
    "$defs": {"digit": {"enum": [1, 2]}},  # as pydantic's schemas have them
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/digit"}, "b": {"enum": [1, 2]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": ADD}}
SAID = '{"name": "add", "arguments": {"a": 1, "b": 2}}'
ONE, TWO = [{"a": 1, "b": 2}], [{"a": 1, "b": 2}] * 2
CODE = "```python\nprint(1)\n```\n"
HALF = r'<tool_call>{"name": "add", "arguments": {"a": "\ud800"}}'
NAMED = '[TOOL_CALLS]add[ARGS]{"a": 1, "b": 2}'
Answers = list[tuple[str, str, list[dict[str, Any]]]]
PLAIN: Answers = [
    ("Just words.", "Just words.", []),
    ("a < b <tool and more", "a < b <tool and more", []),
    ("[1] and [TOOL and more", "[1] and [TOOL and more", []),
    ('{"name": "add", "arguments": {"a": NaN}}', '{"name": "add", "arguments": {"a": NaN}}', []),
    (f"```json\n{SAID}\n```", "", ONE),
    (SAID, "", ONE),
    (f"[{SAID}, {SAID}]", "", TWO),
    ('[{"name": "other", "arguments": {}}]', '[{"name": "other", "arguments": {}}]', []),
    ("[]", "[]", []),
    ('{"name": "other", "arguments": {}}', '{"name": "other", "arguments": {}}', []),
    ('{"a": 1}', '{"a": 1}', []),
    ("```python\nprint(1)\n```", "```python\nprint(1)\n```", []),
    ("", "", []),
]
OF_HERMES: Answers = [
    (f"<tool_call>\n{SAID}\n</tool_call>", "", ONE),
    (f"Well.\n<tool_call>{SAID}</tool_call>\n<tool_call>{SAID}</tool_call>\n", "Well.\n", TWO),
    ("<tool_call>{broken</tool_call> so", "<tool_call>{broken</tool_call> so", []),
    ('<tool_call>{"name": "add", "arguments": {"s": "</tool_call>"}}</tool_call>', "", [{"s": "</tool_call>"}]),
    (f"{CODE}So:\n<tool_call>{SAID}</tool_call>", f"{CODE}So:\n", ONE),
    (HALF, HALF, []),
    (f"<tool_call>{SAID}", "", ONE),
    ("<tool_call>{", "<tool_call>{", []),
    (f"<tool_call>[{SAID}, {SAID}]</tool_call>", "", TWO),  # SmolLM2's
    ("<tool_call>[]</tool_call>", "", []),
]
OF_MISTRAL: Answers = [
    (f"[TOOL_CALLS] [{SAID}]", "", ONE),
    (f"[TOOL_CALLS][{SAID}, {SAID}]\n", "", TWO),
    (f"Well. [TOOL_CALLS] [{SAID}]", "Well. ", ONE),
    (NAMED, "", ONE),
    (f"Well.{NAMED}{NAMED}", "Well.", TWO),
    ('[TOOL_CALLS]add[CALL_ID]abcDEF123[ARGS]{"a": 1, "b": 2}', "", ONE),
    ('[TOOL_CALLS]add{"a": 1, "b": 2}', "", ONE),
    ('[TOOL_CALLS]add[ARGS]{"s": "[TOOL_CALLS]f[ARGS]{}"}', "", [{"s": "[TOOL_CALLS]f[ARGS]{}"}]),
    ("[TOOL_CALLS]add[ARGS]{broken", "[TOOL_CALLS]add[ARGS]{broken", []),
    ("[TOOL_CALLS] [{", "[TOOL_CALLS] [{", []),
]


@pytest.mark.parametrize(
    ("marks", "answers"),
    [(None, PLAIN), (None, [(text, text, []) for text, _, _ in OF_HERMES]), (HERMES, PLAIN + OF_HERMES),
     (MISTRAL, PLAIN + OF_MISTRAL)],
    ids=["llama", "no marks", "hermes", "mistral"],
)  # fmt: skip
def test_calls_are_found_however_the_answer_is_cut(marks: Marks | None, answers: Answers) -> None:
    for answer, text, calls in answers:
        for seed in range(20):
            draw, found, said, left = random.Random(seed), Calls(["add"], marks), "", answer
            while left:
                count = draw.randint(1, 7)
                said += found.push(left[:count])
                left = left[count:]
            said += found.end()
            assert (said, [call.arguments for call in found.found]) == (text, calls), answer
            assert all(call.name == "add" for call in found.found)
            assert len({call.id for call in found.found}) == len(calls)


# Templates that write tools, calls and their answers as the models of that form do, of which each line is short.
BEGIN = "{% if tools %}Tools: {% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}{% for m in messages %}"
END = "{% endfor %}assistant: "
SAYS = "{{ m.role }}: {{ m.content }}\n"
NINE_SIGNS = (
    "{% if m.tool_calls %}{% for c in m.tool_calls %}{% if not c.id is defined or c.id | length != 9 %}"
    "{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}{% endfor %}"
    "{% endif %}{% if m.role == 'tool' and m.tool_call_id | length != 9 %}{{ raise_exception('length 9') }}{% endif %}"
)
LIST = f"{BEGIN}{NINE_SIGNS}{{% if m.tool_calls %}}[TOOL_CALLS] {{{{ m.tool_calls | tojson }}}}{{% endif %}}{SAYS}{END}"
ARGS = (
    f"{BEGIN}{NINE_SIGNS}{{% for c in m.tool_calls or [] %}}[TOOL_CALLS]{{{{ c.function.name }}}}[ARGS]"
    f"{{{{ c.function.arguments | tojson }}}}{{% endfor %}}{SAYS}{END}"
)
IDS = ARGS.replace("[ARGS]", "[CALL_ID]{{ c.id }}[ARGS]")
LLAMA = f'{BEGIN}{{% if m.tool_calls %}}{{"name": "f", "parameters": {{}}}}{{% endif %}}{SAYS}{END}'
SMOLLM3 = f"<tool_call>{BEGIN.replace('tools', 'xml_tools')}{SAYS}{END}"
TOOLLESS = f"{{% for m in messages %}}{SAYS}{END}"  # as SmolLM2's
TEMPLATES = {"list": LIST, "args": ARGS, "ids": IDS, "llama": LLAMA, "smollm3": SMOLLM3, "toolless": TOOLLESS}


@pytest.fixture(scope="module")
def few_words() -> Iterator[None]:
    """The tiny model has room for 512 tokens, which have two letters each."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tool_talk, "TOLD", "Tools: {tools}")
        yield


@pytest.fixture(scope="module", params=TEMPLATES)
def client(
    request: pytest.FixtureRequest,
    pristine_tiny_bundle: Bundle,
    few_words: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[httpx.Client]:
    """A server of the tiny model with each template."""
    template = TEMPLATES[request.param]
    with running(templated(pristine_tiny_bundle, tmp_path_factory.mktemp(request.param), template)) as client:
        client.headers["form"] = request.param
        yield client


def test_a_call_that_is_demanded_comes_in_every_form_whole_and_in_a_stream(client: httpx.Client) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "1 + 2?"}], "tools": [TOOL], "max_tokens": 200}
    body |= {"tool_choice": "required", "temperature": 1, "seed": 4}
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    arguments = json.loads(call["function"]["arguments"])
    assert call["function"]["name"] == "add" and {*arguments} == {"a", "b"}
    if client.headers["form"] in ("list", "args", "ids"):
        assert len(call["id"]) == 9 and call["id"].isalnum()
    lines = client.post("/v1/chat/completions", json=body | {"stream": True}).text.split("\n\n")
    events = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
    streamed = [call for event in events for call in event["delta"].get("tool_calls", [])]
    assert [(each["index"], each["function"]) for each in streamed] == [(0, call["function"])]
    assert not any(event["delta"].get("content") for event in events)
    assert events[-1]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("id", ["call_1234567890", "abcDEF123", None])
def test_a_talk_with_calls_goes_on_in_every_form(client: httpx.Client, id: str | None) -> None:
    """Also where the client gives no ids, and where the request offers no tools any more."""
    call = ({"id": id} if id else {}) | {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    talk = [
        {"role": "user", "content": "1 + 2?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "3"} | ({"tool_call_id": id} if id else {}),
    ]
    for tools in ([TOOL], []):
        response = client.post("/v1/chat/completions", json={"messages": talk, "tools": tools, "max_tokens": 3})
        assert response.status_code == 200, response.text


def test_answers_of_tools_find_the_ids_of_their_calls() -> None:
    calls = [{"type": "function", "function": {"name": name, "arguments": {}}} for name in ("add", "take", "add")]
    talk: list[Message] = [
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "3", "name": "take"},
        {"role": "tool", "content": "4"},
        {"role": "tool", "content": "5"},
    ]
    template = ChatTemplate(LIST, {})
    (assistant, *answers), _ = told(template, [{"role": "user", "content": "x"}, *talk][1:], [TOOL])
    ids = [call["id"] for call in assistant["tool_calls"]]
    assert [answer["tool_call_id"] for answer in answers] == [ids[1], ids[0], ids[2]] and len({*ids}) == 3
    assert "id" not in calls[0]  # what a caller gave is as it was


def test_a_template_without_tools_is_told_of_them_in_words() -> None:
    template = ChatTemplate(TOOLLESS, {})
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    talk: list[Message] = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "1 + 2?"},
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "content": "3"},
        {"role": "tool", "content": "4"},
    ]
    said, tools = told(template, talk, [TOOL])
    assert [each["role"] for each in said] == ["system", "user", "assistant", "user"] and tools == []
    assert said[0]["content"].startswith("Be short.\n\n") and json.dumps(TOOL["function"]) in said[0]["content"]
    found = Calls(["add"], HERMES)
    assert found.push(said[2]["content"]) == "" and [each.arguments for each in found.found] == [{"a": 1}] * 2
    assert "3" in said[3]["content"] and "4" in said[3]["content"]
    assert told(template, talk[:2], []) == (talk[:2], [])


@pytest.mark.usefixtures("few_words")
def test_one_call_alone_is_told_where_that_is_asked(pristine_tiny_bundle: Bundle, tmp_path: Path) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "tools": [TOOL], "max_tokens": 250}
    two = f"<tool_call>[{SAID}, {SAID}]</tool_call>"
    body["grammar"] = f"start: {json.dumps(two)}"
    with running(templated(pristine_tiny_bundle, tmp_path, TOOLLESS)) as client:
        for more, count in (({}, 2), ({"parallel_tool_calls": False}, 1)):
            choice = client.post("/v1/chat/completions", json=body | more).json()["choices"][0]
            assert len(choice["message"]["tool_calls"]) == count and choice["finish_reason"] == "tool_calls"
