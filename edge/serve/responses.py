"""OpenAI's Responses API, without a memory: a request has all that its answer goes on from, and nothing is stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from edge.errors import InputError
from edge.runtime.options import DECODER, any_value, shown
from edge.serve.answering import TOP_LOGPROBS, Ask
from edge.serve.fields import Fields
from edge.serve.openai import read_form, read_options, read_tools_and_choice, thinking
from edge.serve.refusal import BAD, Refusal
from edge.serve.responses_form import ResponseForm
from edge.serve.responses_input import instructed, read_input
from edge.serve.tools import Tool, read_choice, read_tools

if TYPE_CHECKING:
    from edge.serve.server import Server

LOGPROBS, ENCRYPTED = INCLUDED = "message.output_text.logprobs", "reasoning.encrypted_content"
MOST_LABELS = 16
STORED = "Nothing is stored here; leave {} out, and give the whole conversation as input."


async def responses(server: Server, request: Request) -> Response:
    """`POST /v1/responses`."""
    fields = Fields(await server.body(request))
    name = server.models.name(fields.text("model"))
    server.models.check_kind(name, DECODER)
    messages = fields.take("input", read_input)
    if messages is None:
        raise Refusal(BAD, "The request has no input.", field="input")
    instructions = fields.text("instructions")
    told = {"instructions": instructions, "metadata": fields.take("metadata", _metadata, {})}
    messages = instructed(instructions, messages)
    options = read_options(fields, ("max_output_tokens",))
    if (reasoning := fields.object("reasoning")) is not None:
        if (effort := reasoning.take("effort", any_value)) is not None:
            options = thinking(options, effort, "reasoning.effort")
        told["reasoning"] = {"effort": effort, "summary": None}
        for summary in ("summary", "generate_summary"):
            reasoning.only(summary, ["auto"], f"Thoughts come whole, without a summary; leave {summary} out.")
        reasoning.end()
    if (shape := fields.object("text")) is not None:
        form, given = shape.take("format", _format, (None, {}))
        shape.only("verbosity", ["medium"], "The verbosity cannot be set; say in the instructions how long to answer.")
        shape.end()
        if form is not None:
            told["text"] = {"format": form}
            options = replace(options, **given)
    tools, choice, parallel = read_tools_and_choice(fields, _tools, _choice)
    top = _top(fields)
    streamed = fields.flag("stream")
    if (more := fields.object("stream_options")) is not None:
        more.unread("include_obfuscation")
        more.end()
    _refuse_memory(fields)
    fields.end()
    told |= {"tools": [_flat(tool) for tool in tools], "tool_choice": _told_choice(choice), "top_logprobs": top or 0}
    told["parallel_tool_calls"] = parallel
    ask = Ask(messages, [options], top=top, tools=tools, choice=choice, parallel=parallel)
    return await ResponseForm(server, name, options, told).respond(request, ask, streamed)


def _refuse_memory(fields: Fields) -> None:
    """Refuse what would need a memory, or what else only a service has."""
    for each in ("previous_response_id", "conversation", "prompt"):
        fields.only(each, [], STORED.format(each))
    fields.only("background", [False], "Answers are made while somebody waits; leave background out.")
    fields.only("truncation", ["disabled"], "No input is cut; leave truncation out.")
    fields.unread("max_tool_calls")  # of tools that the server runs, and it runs none


def _top(fields: Fields) -> int | None:
    """The number of likely tokens whose log probabilities are told; None: of no token."""
    included = fields.take("include", _included, [])
    top = fields.integer("top_logprobs", most=TOP_LOGPROBS)
    if top and LOGPROBS not in included:
        raise Refusal(BAD, f"top_logprobs needs {LOGPROBS} under include.", field="top_logprobs")
    return (top or 0) if LOGPROBS in included else None


def _included(value: Any) -> list[str]:
    # Thoughts come as plain text, which a later request may have back: they need no encrypted form.
    if not isinstance(value, list) or len(value) > len(INCLUDED) or any(each not in INCLUDED for each in value):
        raise InputError(f"The include may have {LOGPROBS} and {ENCRYPTED}, not {shown(value)}.")
    return value


def _metadata(value: Any) -> Mapping[str, str]:
    if (
        not isinstance(value, dict)
        or len(value) > MOST_LABELS
        or not all(isinstance(each, str) for each in value.values())
    ):
        raise InputError(f"The metadata must be an object of at most {MOST_LABELS} texts, not {shown(value)}.")
    return value


def _format(value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a response says of an answer's form, and the options of it."""
    given = read_form("text.format", _nested(value, "json_schema"))
    if value["type"] != "json_schema":
        return {"type": value["type"]}, given
    name = value.get("name")
    named = {"name": name if isinstance(name, str) else "answer"}
    return {"type": "json_schema", **named, "schema": given["json_schema"]}, given


def _nested(value: Any, name: str) -> Any:
    """An object in the form of chat completions, which have all but the type one level deeper: `name` for a function or
    a schema."""
    if not isinstance(value, dict) or value.get("type") != name:
        return value
    return {"type": name, name: {key: each for key, each in value.items() if key != "type"}}


def _flat(tool: Tool) -> dict[str, Any]:
    """A tool in the form of this protocol."""
    return {"type": "function", "description": None, "strict": None, **tool["function"]}


def _tools(value: Any) -> list[Tool]:
    return read_tools([_nested(each, "function") for each in value] if isinstance(value, list) else value)


def _choice(value: Any) -> str:
    return read_choice(_nested(value, "function"))


def _told_choice(choice: str) -> Any:
    return choice if choice in ("auto", "none", "required") else {"type": "function", "name": choice[1:]}
