"""OpenAI's protocol: chat completions, completions and models."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from edge.errors import EdgeError, InputError
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.decode.sampling import RANDOM
from edge.runtime.options import any_value, shown
from edge.runtime.text.template import TOOL, Message
from edge.serve.answering import (
    TOP_LOGPROBS,
    Answers,
    Ask,
    Logprob,
    Part,
    calls_of,
    finish_of,
    text_of,
    thoughts_of,
    usage_of,
)
from edge.serve.fields import Fields
from edge.serve.refusal import BAD, Refusal
from edge.serve.tools import Call, read_calls, read_choice, read_tools

if TYPE_CHECKING:
    from edge.serve.server import Server
    from edge.serve.worker import Worker

MOST_ANSWERS = 16  # to one request
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": TOOL}
EFFORTS = {"none": 0, "minimal": 128, "low": 512, "medium": 2048, "high": None}  # tokens of thoughts
SAMPLING = "temperature", "top_p", "top_k", "min_p", "repetition_penalty"
DOCS = " (docs/guide/serve.md lists what it knows)"


async def models(server: Server, request: Request) -> Response:
    """`GET /v1/models`."""
    listed = [
        {"id": name, "object": "model", "created": server.started, "owned_by": "edge"} for name in server.models.bundles
    ]
    return JSONResponse({"object": "list", "data": listed})


async def model(server: Server, request: Request) -> Response:
    """`GET /v1/models/NAME`."""
    name = server.models.name(request.path_params["name"])
    return JSONResponse({"id": name, "object": "model", "created": server.started, "owned_by": "edge"})


async def chat_completions(server: Server, request: Request) -> Response:
    """`POST /v1/chat/completions`."""
    fields = Fields(await server.body(request))
    name = server.models.name(fields.text("model"))
    messages = fields.take("messages", _messages)
    if messages is None:
        raise Refusal(BAD, "The request has no messages.", field="messages")
    wants = fields.flag("logprobs")
    top = fields.integer("top_logprobs", most=TOP_LOGPROBS)
    if top is not None and not wants:
        raise Refusal(BAD, "top_logprobs needs logprobs to be true.", field="top_logprobs")
    options, streamed, usage = _common(fields, ("max_completion_tokens", "max_tokens"))
    effort = fields.take("reasoning_effort", any_value)
    options = options if effort is None else thinking(options, effort, "reasoning_effort")
    options = replace(options, **fields.take("response_format", _form, {}))
    tools, choice = fields.take("tools", read_tools, []), fields.take("tool_choice", read_choice, "auto")
    if choice not in ("auto", "none") and not tools:
        raise Refusal(BAD, "The tool_choice demands a call, and there are no tools.", field="tool_choice")
    fields.only(
        "parallel_tool_calls", [True], "A model calls as many tools as it wants; leave parallel_tool_calls out."
    )
    count = _count(fields)
    fields.end(DOCS)
    ask = Ask(messages, _several(options, count), top=(top or 0) if wants else None, tools=tools, choice=choice)
    form = _Form(server, name, "chat.completion", "chatcmpl")
    return await form.respond(request, ask, streamed, usage)


async def completions(server: Server, request: Request) -> Response:
    """`POST /v1/completions`: the prompt goes to the model as it is."""
    fields = Fields(await server.body(request))
    name = server.models.name(fields.text("model"))
    prompt = fields.take("prompt", _prompt)
    if prompt is None:
        raise Refusal(BAD, "The request has no prompt.", field="prompt")
    top = fields.integer("logprobs", most=TOP_LOGPROBS)
    options, streamed, usage = _common(fields, ("max_tokens",))
    fields.only("echo", [False], "The prompt is not repeated; leave echo out.")
    fields.only("best_of", [1], "One answer is made, and not the best of several; leave best_of out.")
    count = _count(fields)
    fields.end(DOCS)
    ask = Ask(prompt, _several(options, count), raw=True, top=top)
    return await _Text(server, name, "text_completion", "cmpl").respond(request, ask, streamed, usage)


def _common(fields: Fields, lengths: Sequence[str]) -> tuple[GenerateOptions, bool, bool]:
    """The options of answers, and whether they are streamed, with the counts of tokens in the end."""
    given = {each: fields.take(each, any_value) for each in SAMPLING}
    length = [fields.integer(each, least=1) for each in lengths]
    options = GenerateOptions(
        **{name: value for name, value in given.items() if value is not None},
        max_tokens=next((each for each in length if each is not None), None),
        seed=fields.integer("seed"),
        stop=fields.texts("stop"),
    )
    if options.seed is None:
        options = replace(options, seed=RANDOM)
    options = replace(options, regex=fields.text("regex"), grammar=fields.text("grammar"))
    for name in ("presence_penalty", "frequency_penalty"):
        fields.only(name, [0], f"{name} is not served; take repetition_penalty.")
    fields.only("logit_bias", [{}], "logit_bias is not served; leave it out.")
    fields.only("store", [False], "Nothing is stored here; leave store out.")
    # Labels of the caller's own, and what asks for the computers of a service.
    fields.unread("user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "store")
    streamed, usage = fields.flag("stream"), False
    if (more := fields.object("stream_options")) is not None:
        usage = more.flag("include_usage")
        more.unread("include_obfuscation")
        more.end()
    return options, streamed, usage


def _count(fields: Fields) -> int:
    """The number of answers that are asked for."""
    return fields.integer("n", least=1, most=MOST_ANSWERS) or 1


def _several(options: GenerateOptions, count: int) -> list[GenerateOptions]:
    """The options of each answer: each draws by a seed of its own."""
    seeds = [options.seed if not isinstance(options.seed, int) else options.seed + i for i in range(count)]
    return [replace(options, seed=seed) for seed in seeds]


def _form(value: Any) -> dict[str, Any]:
    """The options of an answer's form, by what a request says of it."""
    fields = Fields(value if isinstance(value, dict) else {}, "response_format")
    kind = fields.text("type")
    schema: Any = None
    if kind == "json_object":
        schema = {"type": "object"}
    elif kind == "json_schema":
        inner = fields.object("json_schema") or Fields({})
        schema = inner.take("schema", any_value)
        inner.unread("name", "description", "strict")
        inner.end(DOCS)
        if schema is None:
            raise InputError("The response_format has no schema.")
    elif kind != "text":
        raise InputError(
            f"The type of the response_format must be text, json_object or json_schema, not {shown(kind)}."
        )
    fields.end(DOCS)
    return {} if schema is None else {"json_schema": schema}


def thinking(options: GenerateOptions, effort: Any, field: str) -> GenerateOptions:
    """The options with what a field of a request says of thoughts."""
    if not isinstance(effort, str) or effort not in EFFORTS:
        raise Refusal(BAD, f"The {field} must be {', '.join(EFFORTS)}, not {shown(effort)}.", field=field)
    return replace(options, think=effort != "none", think_tokens=EFFORTS[effort] or None)


def _prompt(value: Any) -> str:
    found = value[0] if isinstance(value, list) and len(value) == 1 else value
    if not isinstance(found, str):
        raise InputError(f"The prompt must be one text, not {shown(value)}.")
    return found


def _messages(value: Any) -> list[Message]:
    """The messages of a conversation, each with a text as its content."""
    if not isinstance(value, list) or not value:
        raise InputError(f"The messages must be a list of one message or more, not {shown(value)}.")
    return [_message(i, each) for i, each in enumerate(value)]


def _message(number: int, value: Any) -> Message:
    if not isinstance(value, dict):
        raise InputError(f"Message {number} must be an object, not {shown(value)}.")
    fields = Fields(value, f"message {number}")
    role = ROLES.get(fields.text("role") or "")
    if role is None:
        known = ", ".join(ROLES)
        raise InputError(f"Message {number} is of the role {shown(value.get('role'))}; known are {known}.")
    content = fields.take("content", lambda content: _content(number, content), "")
    thoughts, calls = fields.text("reasoning_content"), fields.take("tool_calls", read_calls, [])
    fields.unread("refusal", "name", "annotations", "tool_call_id")
    fields.end(DOCS)
    message = Message(role=role, content=content)
    if role == "assistant" and thoughts:
        message["reasoning_content"] = thoughts
    if role == "assistant" and calls:
        message["tool_calls"] = calls
    return message


def _content(number: int, value: Any) -> str:
    """A message's text; of a list of parts, their texts."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise InputError(f"The content of message {number} must be a text, or a list of parts, not {shown(value)}.")
    for part in value:
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise InputError(
                f"Message {number} has a part of the type {shown(part.get('type'))}; models here read text."
            )
    return "\n".join(part["text"] for part in value)


class _Form:
    """The form of the answers to one request, whole or in a stream.

    Args:
        server: which answers.
        model: by its name.
        kind: what OpenAI calls a whole answer.
        prefix: of its id.
    """

    def __init__(self, server: Server, model: str, kind: str, prefix: str) -> None:
        self._server, self._model, self._kind = server, model, kind
        self._id, self._created = f"{prefix}-{secrets.token_hex(12)}", int(time.time())
        self._worker: Worker
        self._calls = dict[int, int]()  # that were streamed, by the answer's number

    async def respond(self, request: Request, ask: Ask, streamed: bool, usage: bool) -> Response:
        """Answer a request."""
        answers = await Answers.of(self._server.models, self._model, ask)
        self._worker = answers.worker
        if streamed:
            stream = self._events(answers, len(ask.options), ask.top is not None, usage)
            return StreamingResponse(stream, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        parts = await answers.whole(request.is_disconnected)
        if parts is None:  # nobody reads it
            return Response(status_code=499)
        self._server.count(self._model, answers.timings)
        choices = [self.choice(i, each, ask.top is not None) for i, each in enumerate(parts)]
        return JSONResponse(self._object(self._kind, choices) | {"usage": usage_of(answers.timings)})

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }

    async def _events(self, answers: Answers, count: int, logprobs: bool, usage: bool) -> AsyncGenerator[str, None]:
        """The events of a stream."""
        kind = self.chunk_kind
        try:
            for begun in self.begun(count):
                yield _event(self._object(kind, [begun]))
            async for part in answers.parts():
                if (delta := self.delta(part, logprobs)) is not None:
                    yield _event(self._object(kind, [delta]))
        except EdgeError as e:
            yield _event({"error": {"message": str(e), "type": "server_error", "param": None, "code": None}})
            return
        self._server.count(self._model, answers.timings)
        if usage:
            yield _event(self._object(kind, []) | {"usage": usage_of(answers.timings)})
        yield "data: [DONE]\n\n"

    @property
    def chunk_kind(self) -> str:
        """What OpenAI calls a part of a stream."""
        return f"{self._kind}.chunk"

    def begun(self, count: int) -> list[dict[str, Any]]:
        """The first events of a stream."""
        empty = {"role": "assistant", "content": ""}
        return [{"index": i, "delta": empty, "logprobs": None, "finish_reason": None} for i in range(count)]

    def delta(self, part: Part, logprobs: bool) -> dict[str, Any] | None:
        """What a part adds to a stream; None: nothing."""
        piece, delta = part.piece, dict[str, Any]()
        if piece.thoughts:
            delta["reasoning_content"] = piece.thoughts
        if part.text:
            delta["content"] = part.text
        if part.calls:
            delta["tool_calls"] = [
                {"index": i} | _call(call) for i, call in enumerate(part.calls, self._calls.get(part.index, 0))
            ]
            self._calls[part.index] = self._calls.get(part.index, 0) + len(part.calls)
        finish = None if piece.finish_reason is None else self.finish(part, self._calls.get(part.index, 0) > 0)
        if not delta and finish is None and not part.logprobs:
            return None
        told = self.logprobs(part.logprobs) if logprobs else None
        return {"index": part.index, "delta": delta, "logprobs": told, "finish_reason": finish}

    def choice(self, index: int, parts: Sequence[Part], logprobs: bool) -> dict[str, Any]:
        """A whole answer."""
        calls, text = calls_of(parts), text_of(parts)
        message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else ""), "refusal": None}
        if calls:
            message["tool_calls"] = [_call(call) for call in calls]
        if (thoughts := thoughts_of(parts)) is not None:
            message["reasoning_content"] = thoughts
        told = self.logprobs([each for part in parts for each in part.logprobs]) if logprobs else None
        finish = self.finish(parts[-1], bool(calls))
        return {"index": index, "message": message, "logprobs": told, "finish_reason": finish}

    def finish(self, part: Part, called: bool) -> str:
        """The reason why an answer ended, whose last part this is. called: whether it called tools."""
        found = finish_of(part.piece)
        return "tool_calls" if called and found == "stop" else found

    def logprobs(self, found: Sequence[Logprob]) -> dict[str, Any]:
        """Log probabilities in the form of this protocol."""

        def said(token: int, value: float) -> dict[str, Any]:
            text = self.token(token)
            return {"token": text, "logprob": value, "bytes": list(text.encode())}

        content = [
            said(each.token, each.value) | {"top_logprobs": [said(*likely) for likely in each.likely]} for each in found
        ]
        return {"content": content, "refusal": None}

    def token(self, token: int) -> str:
        """The text of a token."""
        return self._worker.model.text.decode([token])


class _Text(_Form):
    """The form of completions."""

    @property
    def chunk_kind(self) -> str:
        return self._kind

    def begun(self, count: int) -> list[dict[str, Any]]:
        return []

    def delta(self, part: Part, logprobs: bool) -> dict[str, Any] | None:
        piece = part.piece
        finish = None if piece.finish_reason is None else finish_of(piece)
        if not piece.text and finish is None and not part.logprobs:
            return None
        told = self.logprobs(part.logprobs) if logprobs else None
        return {"index": part.index, "text": piece.text, "logprobs": told, "finish_reason": finish}

    def choice(self, index: int, parts: Sequence[Part], logprobs: bool) -> dict[str, Any]:
        told = self.logprobs([each for part in parts for each in part.logprobs]) if logprobs else None
        finish = finish_of(parts[-1].piece)
        return {"index": index, "text": text_of(parts), "logprobs": told, "finish_reason": finish}

    def logprobs(self, found: Sequence[Logprob]) -> dict[str, Any]:
        tokens = [self.token(each.token) for each in found]
        return {
            "tokens": tokens,
            "token_logprobs": [each.value for each in found],
            "top_logprobs": [{self.token(token): value for token, value in each.likely} for each in found],
            "text_offset": [sum(map(len, tokens[:i])) for i in range(len(tokens))],
        }


def _call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.said}}


def _event(found: dict[str, Any]) -> str:
    return f"data: {json.dumps(found, ensure_ascii=False)}\n\n"
