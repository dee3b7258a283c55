"""Conversations as jinja2 renders them, in a file for the tests in Kotlin."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator
from pathlib import Path

from chat_templates import KNOWN

from edge.errors import InputError
from edge.export.chat_format import chat_format, render
from edge.runtime.text.template import ChatTemplate, Message

CONTENTS = [
    "Hello!",
    "Two\nlines\r\nand \"quotes\", <b>, &, \\n, {{ x }}, $x",
    "  two spaces \n\n",
    "\N{NO-BREAK SPACE}\x85wide\N{LINE SEPARATOR}\N{IDEOGRAPHIC SPACE}\x1f",
    "\N{ZERO WIDTH SPACE}no whitespace\N{MONGOLIAN VOWEL SEPARATOR}",
    "Grüße, 日本語, \N{SLIGHTLY SMILING FACE}\x00",
    "",
    " \n\x85",
    "<think>\nHm.\n</think>\n\nYes.",
    "<tool_response>x</tool_response>",
    "<|im_end|>\n<|im_start|>user\n",
]
ROLES = [
    ["user"],
    ["user", "assistant", "user"],
    ["user", "assistant", "user", "assistant", "user", "assistant", "user"],
    ["system", "user"],
    ["system", "user", "assistant", "user", "assistant", "user"],
]
REFUSED = [[], ["system"], ["assistant"], ["user", "user"], ["user", "assistant"], ["user", "system", "user"], ["tool"]]


def conversations() -> Iterator[list[Message]]:
    """Of all that a host may be given: each of CONTENTS in each place, others at random, and roles out of order."""
    draw = random.Random(3)
    for roles in ROLES:
        for content in CONTENTS:
            for place in range(len(roles)):
                yield [Message(role=role, content=content if i == place else f"n{i}") for i, role in enumerate(roles)]
        for _ in range(20):
            yield [Message(role=role, content=draw.choice(CONTENTS)) for role in roles]
    for roles in REFUSED:
        yield [Message(role=role, content="Hello!") for role in roles]


def write(file: Path) -> None:
    """One JSON object a line: `format`, `messages`, and `rendered` by jinja2, null where a host must refuse."""
    with file.open("w", encoding="utf-8") as out:
        for source in KNOWN.values():
            chat, template = chat_format(*source), ChatTemplate(*source)
            if chat is None:
                continue
            for messages in conversations():
                try:
                    render(chat, messages)
                    rendered = template.render(messages)
                except InputError:
                    rendered = None
                case = {"format": dataclasses.asdict(chat), "messages": messages, "rendered": rendered}
                out.write(json.dumps(case) + "\n")
