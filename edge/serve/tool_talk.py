"""Conversations with calls of tools, for templates that know none, and for Mistral's, which know ids of nine signs."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence

from edge.runtime.text.template import TOOL, ChatTemplate, Message
from edge.serve.tools import Tool

MISTRALS = "[TOOL_CALLS]"  # in templates that demand ids of nine signs
NINE = re.compile("[a-zA-Z0-9]{9}")

# By which SmolLM2 was taught to call (its model card).
TOLD = """You are an expert in composing functions. You are given a question and a set of possible functions. \
Based on the question, you will need to make one or more function/tool calls to achieve the purpose. \
If none of the functions can be used, point it out and refuse to answer. \
If the given question lacks the parameters required by the function, also point it out.

You have access to the following tools:
<tools>{tools}</tools>

The output MUST strictly adhere to the following format, and NO other text MUST be included.
The example format is as follows. Please make sure the parameter type is correct. If no function call is needed, \
please make the tool calls an empty list '[]'.
<tool_call>[
{{"name": "func_name1", "arguments": {{"argument1": "value1", "argument2": "value2"}}}},
... (more tool calls as required)
]</tool_call>"""


def told(
    template: ChatTemplate | None, talk: Sequence[Message], tools: Sequence[Tool]
) -> tuple[Sequence[Message], Sequence[Tool]]:
    """A conversation, and the tools that the template is to tell the model of besides."""
    calls = any("tool_calls" in message or message["role"] == TOOL for message in talk)
    if template is None or not (tools or calls):
        return talk, tools
    if not template.takes_tools:
        return _in_words(talk, tools), []
    return (_with_ids(talk) if MISTRALS in template.source else talk), tools


def _in_words(talk: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
    """A conversation in which tools, calls of them and their answers are told in messages' texts."""
    found: list[Message] = []
    if tools:
        told = TOLD.format(tools=json.dumps([tool["function"] for tool in tools], ensure_ascii=False))
        before = f"{talk[0]['content']}\n\n" if talk and talk[0]["role"] == "system" else ""
        found.append(Message(role="system", content=f"{before}{told}"))
        talk = talk[1:] if before else talk
    for message in talk:
        content, role = message["content"], message["role"]
        if calls := message.get("tool_calls"):
            said = json.dumps([call["function"] for call in calls], ensure_ascii=False)
            content = f"{content}\n<tool_call>{said}</tool_call>".lstrip()
        elif role == TOOL:
            role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
            if found and found[-1]["content"].endswith("</tool_response>"):  # turns alternate
                found[-1] = Message(role=role, content=f"{found[-1]['content']}\n{content}")
                continue
        told_message = Message(role=role, content=content)
        if "reasoning_content" in message:
            told_message["reasoning_content"] = message["reasoning_content"]
        found.append(told_message)
    return found


def _with_ids(talk: Sequence[Message]) -> list[Message]:
    """A conversation in which calls and their answers have ids of nine signs: their own, or made of these, or of
    their places where a client gives none, as Ollama's do."""
    found: list[Message] = []
    unanswered: list[tuple[str, str]] = []  # calls: their tools and ids
    for place, message in enumerate(talk):
        message = message.copy()
        if "tool_calls" in message:
            calls = message["tool_calls"]
            calls = [each | {"id": _nine(each.get("id") or f"{place}.{i}")} for i, each in enumerate(calls)]
            message["tool_calls"] = calls
            unanswered = [(each["function"]["name"], each["id"]) for each in calls]
        elif message["role"] == TOOL:
            given, name = message.get("tool_call_id"), message.get("name")
            next_of = [id for tool, id in unanswered if name in (None, tool)] or [_nine(str(place))]
            message["tool_call_id"] = id = _nine(given) if given else next_of[0]
            unanswered = [each for each in unanswered if each[1] != id]
        found.append(message)
    return found


def _nine(id: str) -> str:
    return id if NINE.fullmatch(id) else hashlib.sha256(id.encode()).hexdigest()[:9]
