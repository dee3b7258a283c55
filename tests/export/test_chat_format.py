"""A chat format renders what jinja2 renders, or refuses; and there is none where that cannot be promised."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from chat_templates import CHATML, KNOWN, QWEN_3, conversations

from edge.errors import InputError
from edge.export.manifest.chat_format import chat_format, render
from edge.manifest import ChatFormat, ChatSlot
from edge.runtime.text.template import ChatTemplate, Message

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "bundle-format.md"
TURN: list[Message] = [{"role": "user", "content": "Hello!"}]
LED: list[Message] = [{"role": "system", "content": "Be brief."}, *TURN]
DATED = {"Llama 3.2", "SmolLM3"}
UNLED = {"Gemma 2", "Phi-3, the first", "Mistral 0.1", "Mistral 0.3"}
REFUSED = {"Qwen3": ["</think>", "<tool_response>"], "DeepSeek-R1": ["</think>"]}


def rendered(chat: ChatFormat | ChatTemplate, messages: list[Message]) -> str | None:
    """None where it refuses."""
    try:
        return render(chat, messages) if isinstance(chat, ChatFormat) else chat.render(messages)
    except InputError:
        return None


@pytest.fixture(scope="module")
def formats() -> dict[str, ChatFormat | None]:
    return {name: chat_format(*source) for name, source in KNOWN.items()}


@pytest.mark.parametrize("name", sorted(KNOWN.keys() - DATED))
def test_a_format_renders_what_jinja_renders(formats: dict[str, ChatFormat | None], name: str) -> None:
    chat, template = formats[name], ChatTemplate(*KNOWN[name])
    assert chat is not None
    for messages in conversations():
        if (text := rendered(chat, messages)) is not None:
            assert text == rendered(template, messages), messages


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_a_format_refuses_no_more_than_it_must(formats: dict[str, ChatFormat | None], name: str) -> None:
    chat = formats[name]
    assert (chat is None) == (name in DATED)
    if chat is not None:
        assert (rendered(chat, LED) is None) == (name in UNLED)
        assert (rendered(chat, TURN) is None) == (name == "Granite 3")
        assert chat.refused == REFUSED.get(name, [])


@pytest.mark.parametrize("name", sorted(KNOWN.keys() - DATED))
def test_the_renderer_in_the_docs_is_whole(formats: dict[str, ChatFormat | None], name: str) -> None:
    (code,) = re.findall(r"```python\n(SLOTS = .*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    documented: dict[str, Any] = {}
    exec(code, documented)
    chat = formats[name]
    assert chat is not None
    for messages in conversations():
        if (expected := rendered(chat, messages)) is None:
            with pytest.raises(ValueError):
                documented["render"](dataclasses.asdict(chat), messages)
        else:
            assert documented["render"](dataclasses.asdict(chat), messages) == expected


def test_the_templates_own_system_message_is_in_front_of_the_first_question() -> None:
    chat = chat_format(*KNOWN["SmolLM2"])
    assert chat is not None and chat.first_user is not None
    default = "<|im_start|>system\nYou are a helpful assistant named SmolLM<|im_end|>\n<|im_start|>user\n"
    assert chat.first_user == ChatSlot(default, blank=True)


def test_whitespace_that_llama_2_keeps_in_one_place_is_kept_there() -> None:
    chat = chat_format(*KNOWN["Llama 2"])
    assert chat is not None
    assert chat.user_after_system == ChatSlot("\n<</SYS>>\n\n", trim_end=True, blank=False)
    assert chat.first_user == ChatSlot("<s>[INST] ", trim_start=True, trim_end=True, blank=True)


def test_thoughts_that_a_host_drops_as_the_docs_say_render_as_qwen_3_drops_them() -> None:
    chat = chat_format(QWEN_3, {})
    assert chat is not None
    answer = "<think>\nHm.\n</think>\n\nYes.\n"
    kept = answer.rpartition("</think>")[2].lstrip("\n")
    talk, dropped = ([*TURN, Message(role="assistant", content=text), *TURN] for text in (answer, kept))
    assert rendered(chat, talk) is None
    assert rendered(chat, dropped) == ChatTemplate(QWEN_3, {}).render(talk)


CONTENT = "m['content']"


@pytest.mark.parametrize(
    "content",
    [
        f"{CONTENT} | lower",
        f"{CONTENT} | capitalize",
        f"{CONTENT} | e",
        f"{CONTENT} | tojson",
        f"{CONTENT} | truncate(255)",
        f"{CONTENT} | replace('\n', ' ')",
        f"{CONTENT}.strip('\n')",
        f"{CONTENT}.split() | join(' ')",
        f"{CONTENT} + {CONTENT}",
        f"{CONTENT} + strftime_now('%A')",
        f"{CONTENT} + strftime_now('%M')",
        f"{CONTENT} + ['a', 'b', 'c'] | random",
        f"{CONTENT} + (messages | length) | string",
        f"({CONTENT} if loop.index < 99 else '')",
        f"({CONTENT} if loop.last or m.role != 'user' else {CONTENT} | trim)",
        f"({CONTENT} if m.content != messages[loop.index0 - 2].content else 'again')",
        f"({CONTENT} if 'a' not in {CONTENT} or '<b>' not in {CONTENT} or '/c' not in {CONTENT} else '')",
        "'no content'",
    ],
)
def test_a_template_that_does_more_has_no_format(content: str) -> None:
    assert chat_format(CHATML.replace(CONTENT, f"({content})"), {}) is None


@pytest.mark.parametrize("source", ["{% for %}", "", "{{ messages }}", "{{ raise_exception('no') }}"])
def test_a_template_that_renders_no_conversation_has_no_format(source: str) -> None:
    assert chat_format(source, {}) is None


@pytest.mark.parametrize(
    ("content", "special", "refused"),
    [
        (f"{CONTENT}.split('</t>')[-1]", {}, ["</t>"]),
        (f"({CONTENT}[3:] if {CONTENT}.startswith('/no') else {CONTENT})", {}, ["/no"]),
        (f"({CONTENT} if {CONTENT} != 'hi' else 'ho')", {}, ["hi"]),
        (f"({CONTENT}[3:-4] if {CONTENT}.startswith('<b>') and {CONTENT}[-4:] == '</b>' else {CONTENT})", {}, ["<b>"]),
        (f"{CONTENT}.replace(eos_token, '')", {"eos_token": "</s>"}, ["</s>"]),
    ],
)
def test_what_a_template_looks_for_is_refused(content: str, special: dict[str, str], refused: list[str]) -> None:
    chat = chat_format(CHATML.replace(CONTENT, f"({content})"), special)
    assert chat is not None and chat.refused == refused
    with pytest.raises(InputError, match=re.escape(repr(refused[0]))):
        render(chat, [{"role": "user", "content": refused[0]}])


def test_blank_messages_are_refused_where_the_template_treats_them_otherwise() -> None:
    chat = chat_format("{% if messages[0].content.strip() == '' %}blank{% endif %}" + CHATML, {})
    assert chat is not None and chat.first_user is not None and not chat.first_user.blank
    assert chat.assistant.blank
    with pytest.raises(InputError, match="blank message of user"):
        render(chat, [{"role": "user", "content": "\n"}])


@pytest.mark.parametrize("roles", [[], ["system"], ["assistant", "user"], ["user", "user"], ["user", "assistant"]])
def test_roles_out_of_order_are_refused(roles: list[str]) -> None:
    chat = chat_format(CHATML, {})
    assert chat is not None
    with pytest.raises(InputError):
        render(chat, [Message(role=role, content="Hello!") for role in roles])
