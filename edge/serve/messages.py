"""The messages of a conversation, as a request has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edge.errors import InputError
from edge.runtime.options import shown
from edge.runtime.text.template import TOOL, Message
from edge.serve.fields import Fields
from edge.serve.tools import read_calls

MOST_MESSAGES = 2000
PART_LABELS = "annotations", "logprobs", "cache_control", "prompt_cache_breakpoint"  # which say nothing to the model


def text_of_parts(kinds: Sequence[str], number: int, value: Any) -> str:
    """A message's text; of a list of parts, which must be of these kinds, their texts."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or len(value) > MOST_MESSAGES or not all(isinstance(each, dict) for each in value):
        raise InputError(f"The content of message {number} must be a text, or a list of parts, not {shown(value)}.")
    return "\n".join(_part(kinds, number, part) for part in value)


def _part(kinds: Sequence[str], number: int, value: Any) -> str:
    fields = Fields(value, f"a part of message {number}")
    kind = fields.text("type")
    if kind not in kinds:
        raise InputError(f"Message {number} has a part of the type {shown(kind)}; models here read text.")
    said = fields.text("text")
    if said is None:
        raise InputError(f"Message {number} has a part without a text.")
    fields.unread(*PART_LABELS)
    fields.end()
    return said


@dataclass(frozen=True)
class MessageForm:
    """The form of messages in a protocol.

    roles: those of the chat template, by what the protocol calls them. thoughts: the field with what the assistant
    thought. content: reads a message's text, given its number and what stands there. unread: fields that say nothing to
    the model. images: whether there is a field for them, which is refused. empty: whether there may be no message.
    tool: the field with the name of the tool whose answer a message is.
    """

    roles: Mapping[str, str]
    thoughts: str
    content: Callable[[int, Any], str]
    unread: Sequence[str]
    images: bool = False
    empty: bool = False
    tool: str = "name"

    def read(self, value: Any) -> list[Message]:
        """The check of a request's messages."""
        if not isinstance(value, list) or not (value or self.empty):
            raise InputError(f"The messages must be a list of one message or more, not {shown(value)}.")
        if len(value) > MOST_MESSAGES:
            raise InputError(f"A talk has at most {MOST_MESSAGES} messages, not {len(value)}.")
        return [self._message(number, each) for number, each in enumerate(value)]

    def _message(self, number: int, value: Any) -> Message:
        if not isinstance(value, dict):
            raise InputError(f"Message {number} must be an object, not {shown(value)}.")
        fields = Fields(value, f"message {number}")
        role = self.roles.get(fields.text("role") or "")
        if role is None:
            known = ", ".join(self.roles)
            raise InputError(f"Message {number} is of the role {shown(value.get('role'))}; known are {known}.")
        content = fields.take("content", lambda content: self.content(number, content), "")
        thoughts, calls = fields.text(self.thoughts), fields.take("tool_calls", read_calls, [])
        if role != "assistant" and (thoughts or calls):
            raise InputError(f"Message {number} is none of the assistant's, and has its {self.thoughts} or tool_calls.")
        call_id, tool = fields.text("tool_call_id"), fields.text(self.tool)
        if self.images:
            fields.only("images", [[]], "images are not served; leave them out.")
        fields.unread(*self.unread)
        fields.end()
        message = Message(role=role, content=content)
        if thoughts:
            message["reasoning_content"] = thoughts
        if calls:
            message["tool_calls"] = calls
        if role == TOOL and call_id:
            message["tool_call_id"] = call_id
        if role == TOOL and tool:
            message["name"] = tool
        return message
