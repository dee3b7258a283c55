"""The items that a request to OpenAI's Responses API goes on from, as the messages of a conversation."""

from __future__ import annotations

from functools import partial
from typing import Any

from edge.errors import InputError
from edge.runtime.options import any_value, shown, text
from edge.runtime.text.template import TOOL, Message
from edge.serve.fields import Fields
from edge.serve.messages import MOST_MESSAGES, text_of_parts
from edge.serve.tools import read_calls

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
TEXTS = "input_text", "output_text"  # parts of messages
LABELS = "id", "status"  # of every item, which an answer's items bring back


def read_input(value: Any) -> list[Message]:
    """The check of a request's input: a text, or a list of items. Items of one turn of the assistant, its thoughts,
    words and calls, are one message."""
    if isinstance(value, str):
        return [Message(role="user", content=value)]
    if not isinstance(value, list) or not value:
        raise InputError(f"The input must be a text, or a list of one item or more, not {shown(value)}.")
    if len(value) > MOST_MESSAGES:
        raise InputError(f"An input has at most {MOST_MESSAGES} items, not {len(value)}.")
    talk = _Talk()
    for number, each in enumerate(value):
        talk.add(number, each)
    return talk.messages


def instructed(instructions: str | None, messages: list[Message]) -> list[Message]:
    """The messages after instructions, which go before a system message that is there."""
    if not instructions:
        return messages
    if messages[0]["role"] != "system":
        return [Message(role="system", content=instructions), *messages]
    return [Message(role="system", content=f"{instructions}\n\n{messages[0]['content']}"), *messages[1:]]


class _Talk:
    """A conversation that grows item by item."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._called = set[str]()  # ids of calls

    def add(self, number: int, value: Any) -> None:
        """Append an item, after its check."""
        if not isinstance(value, dict):
            raise InputError(f"Item {number} of the input must be an object, not {shown(value)}.")
        fields = Fields(value, f"item {number} of the input")
        kind = fields.text("type") or "message"
        add = {
            "message": self._message,
            "reasoning": self._reasoning,
            "function_call": self._call,
            "function_call_output": self._output,
        }.get(kind)
        if add is None:
            raise InputError(
                f"Item {number} of the input is of the type {shown(kind)}; known are message, reasoning, function_call "
                "and function_call_output."
            )
        add(number, fields)
        fields.unread(*LABELS)
        fields.end()

    def _message(self, number: int, fields: Fields) -> None:
        said = fields.text("role")
        if (role := ROLES.get(said or "")) is None:
            raise InputError(f"Item {number} of the input is of the role {shown(said)}; known are {', '.join(ROLES)}.")
        fields.unread("phase")
        content = fields.take("content", partial(text_of_parts, TEXTS, number), "")
        if role != "assistant":
            self.messages.append(Message(role=role, content=content))
            return
        turn = self._turn()
        if turn["content"] or "tool_calls" in turn:
            self.messages.append(turn := Message(role=role, content=""))
        turn["content"] = content

    def _reasoning(self, number: int, fields: Fields) -> None:
        fields.only("encrypted_content", [""], "Thoughts are not encrypted here; give them as content.")
        whole = fields.take("content", partial(text_of_parts, ("reasoning_text",), number), "")
        summary = fields.take("summary", partial(text_of_parts, ("summary_text",), number), "")
        if thoughts := whole or summary:
            self.messages.append(Message(role="assistant", content="", reasoning_content=thoughts))

    def _call(self, number: int, fields: Fields) -> None:
        function = {name: fields.take(name, any_value) for name in ("name", "arguments")}
        call_id = fields.take("call_id", text("call_id"), "")
        (call,) = read_calls([{"id": call_id, "function": function}])
        self._called.add(call_id)
        self._turn().setdefault("tool_calls", []).append(call)

    def _output(self, number: int, fields: Fields) -> None:
        call = fields.take("call_id", text("call_id"), "")
        if call not in self._called:
            raise InputError(f"Item {number} of the input is the output of the call {shown(call)}, which is not there.")
        content = fields.take("output", partial(text_of_parts, TEXTS, number), "")
        self.messages.append(Message(role=TOOL, content=content, tool_call_id=call))

    def _turn(self) -> Message:
        """The turn of the assistant that the input is in."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append(Message(role="assistant", content=""))
        return self.messages[-1]
