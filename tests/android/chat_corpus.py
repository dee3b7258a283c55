"""Conversations as jinja2 renders them, in a file for the tests in Kotlin."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from chat_templates import KNOWN, conversations

from edge.errors import InputError
from edge.export.manifest.chat_format import chat_format, render
from edge.runtime.text.template import ChatTemplate


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
