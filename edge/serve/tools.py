"""The tools that a request offers, its choice among them, and the calls in its messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edge.errors import InputError
from edge.runtime.options import shown
from edge.serve.fields import Fields

MOST = 128  # tools of a request
NAMES = 64  # characters of a tool's name
LONGEST_ID = 256  # characters of a call's id
Tool = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """A call of a tool."""

    id: str
    name: str
    arguments: dict[str, Any]

    @property
    def said(self) -> str:
        """The arguments as JSON."""
        return json.dumps(self.arguments, ensure_ascii=False)


def read_tools(value: Any) -> list[Tool]:
    """The check of a request's tools, as OpenAI's protocol describes them."""
    if not isinstance(value, list) or len(value) > MOST:
        raise InputError(f"The tools must be a list of at most {MOST}, not {shown(value)}.")
    return [_tool(i, each) for i, each in enumerate(value)]


def _tool(number: int, value: Any) -> Tool:
    fields = Fields(value if isinstance(value, dict) else {}, f"tool {number}")
    fields.only("type", ["function"], f"Tool {number} must be a function.")
    function = fields.object("function")
    fields.end()
    if function is None:
        raise InputError(f"Tool {number} has no function.")
    name, about = function.text("name"), function.text("description")
    parameters = function.take("parameters", _parameters)
    function.unread("strict")
    function.end()
    if not name or len(name) > NAMES or not name.replace("-", "_").replace(".", "_").isidentifier():
        raise InputError(f"The name of tool {number} must be a word of letters, digits and _, not {shown(name)}.")
    described = {"name": name} | ({"description": about} if about else {})
    return {"type": "function", "function": described | {"parameters": parameters or {"type": "object"}}}


def _parameters(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"A tool's parameters must be a JSON schema, not {shown(value)}.")
    return value


def read_choice(value: Any) -> str:
    """The check of a request's tool_choice: auto, none or required, or the name of one tool."""
    if isinstance(value, str) and value in ("auto", "none", "required"):
        return value
    if isinstance(value, Mapping) and value.get("type") == "function" and isinstance(value.get("function"), Mapping):
        name = value["function"].get("name")
        if isinstance(name, str):
            return f"={name}"
    raise InputError(f"The tool_choice must be auto, none, required or a function, not {shown(value)}.")


def read_calls(value: Any) -> list[dict[str, Any]]:
    """The check of the calls that an assistant's message made, as templates take them: arguments are objects."""
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise InputError(f"The tool_calls must be a list of calls, not {shown(value)}.")
    found = []
    for each in value:
        function = each.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        arguments = function.get("arguments", {}) if isinstance(function, dict) else None
        try:
            arguments = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise InputError(
                f"A call needs a function with a name and arguments that are a JSON object, not {shown(each)}."
            )
        found.append(_with_id(each) | {"type": "function", "function": {"name": name, "arguments": arguments}})
    return found


def _with_id(call: Mapping[str, Any]) -> dict[str, Any]:
    id = call.get("id")
    if id is not None and (not isinstance(id, str) or len(id) > LONGEST_ID):
        raise InputError(f"The id of a call must be a text of at most {LONGEST_ID} characters, not {shown(id)}.")
    return {"id": id} if id else {}
