"""Ollama's protocol: chat, generate, and the lists of models."""

from __future__ import annotations

import datetime
import hashlib
import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edge import __version__
from edge.bundle import MANIFEST
from edge.embedding_format import EMBEDDER, RERANKER
from edge.errors import EdgeError, InputError
from edge.runtime.decode.answer import Timings
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.decode.sampling import RANDOM
from edge.runtime.options import any_value, shown
from edge.runtime.text.template import TOOL, Message
from edge.serve.answering import Answers, AnswerStream, Ask, Part, calls_of, finish_of, text_of, thoughts_of, waiting
from edge.serve.calls import known
from edge.serve.fields import Fields
from edge.serve.messages import MessageForm
from edge.serve.openai import thinking
from edge.serve.refusal import BAD, BUSY, WAIT_S, Refusal, told_of
from edge.serve.tools import Tool, read_tools

if TYPE_CHECKING:
    from edge.serve.server import Server

# What options are called there.
OPTIONS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repeat_penalty",
}
CAPABILITIES = {EMBEDDER: ["embedding"], RERANKER: ["rerank"]}  # of models that answer nothing
UNSERVED = "suffix", "template", "context", "images"  # fields of generate that must be empty
# Options for Ollama's own way to load and to run a model, which change nothing that an answer says; and those that
# change nothing where they have these values.
MACHINE = "numa", "num_batch", "num_gpu", "main_gpu", "low_vram", "use_mmap", "use_mlock", "num_thread", "num_keep"
NEUTRAL: dict[str, list[Any]] = {
    "mirostat": [0],
    "tfs_z": [1],
    "typical_p": [1],
    "penalize_newline": [False],
    "repeat_last_n": [-1],
    "presence_penalty": [0],
    "frequency_penalty": [0],
}


async def version(server: Server, request: Request) -> Response:
    """`GET /api/version`."""
    return JSONResponse({"version": __version__})


async def tags(server: Server, request: Request) -> Response:
    """`GET /api/tags`: the models that there are."""
    return JSONResponse({"models": [_described(server, name) for name in server.models.bundles]})


async def ps(server: Server, request: Request) -> Response:
    """`GET /api/ps`: the models in memory."""
    return JSONResponse({"models": [_described(server, name) for name in server.models.loaded]})


async def show(server: Server, request: Request) -> Response:
    """`POST /api/show`: what a model is."""
    fields = Fields(await server.body(request))
    asked = [fields.text(each) for each in ("model", "name")]
    name = server.models.name(next(filter(None, asked), None))
    fields.unread("verbose")
    fields.end()
    manifest = server.models.bundles[name].manifest
    return JSONResponse(
        {
            "template": manifest.chat_template or "",
            "details": _described(server, name)["details"],
            "model_info": {
                "general.architecture": manifest.family,
                f"{manifest.family}.context_length": manifest.context,
            },
            "capabilities": CAPABILITIES.get(manifest.kind, ["completion"])
            + (["tools"] if known(manifest.chat_template) and manifest.embedding is None else [])
            + (["thinking"] if manifest.thinking is not None else []),
        }
    )


async def chat(server: Server, request: Request) -> Response:
    """`POST /api/chat`."""
    fields = Fields(await server.body(request))
    messages = fields.take("messages", MESSAGES.read, [])
    tools = fields.take("tools", read_tools, [])

    def said(parts: Sequence[Part]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text_of(parts)}
        if (thoughts := thoughts_of(parts)) is not None:
            message["thinking"] = thoughts
        if calls := calls_of(parts):
            message["tool_calls"] = [{"function": {"name": call.name, "arguments": call.arguments}} for call in calls]
        return {"message": message}

    return await _answer(server, request, fields, messages, said, tools)


async def generate(server: Server, request: Request) -> Response:
    """`POST /api/generate`."""
    fields = Fields(await server.body(request))
    prompt, system = fields.text("prompt") or "", fields.text("system")
    raw = fields.flag("raw")
    for name in UNSERVED:
        fields.only(name, ["", []], f"{name} is not served; leave it out.")
    if raw and system:
        raise Refusal(BAD, "A raw prompt takes no system message; put it into the prompt.", field="system")

    def said(parts: Sequence[Part]) -> dict[str, Any]:
        thoughts = thoughts_of(parts)
        return {"response": text_of(parts)} | ({"thinking": thoughts} if thoughts is not None else {})

    given: str | list[Message] = prompt
    if prompt and not raw:
        given = [Message(role="user", content=prompt)]
        given = [Message(role="system", content=system), *given] if system else given
    return await _answer(server, request, fields, given, said)


async def _answer(
    server: Server,
    request: Request,
    fields: Fields,
    prompt: str | list[Message],
    said: Callable[[Sequence[Part]], dict[str, Any]],
    tools: Sequence[Tool] = (),
) -> Response:
    """Answer a prompt. said: makes what a response has of some parts of the answer."""
    name = server.models.name(fields.text("model"))
    streamed: bool = fields.take("stream", _flag, True)
    keep, think = fields.take("keep_alive", _keep_alive), fields.take("think", any_value)
    options, context = _options(fields.object("options") or Fields({}))
    if (form := fields.take("format", any_value)) not in (None, ""):
        options = replace(options, json_schema={"type": "object"} if form == "json" else form)
    fields.end()
    if think is not None:
        options = thinking(options, "high" if think is True else "none" if think is False else think, "think")
        options = replace(options, effort=None) if think is True else options
    if not prompt:  # loads the model, or with keep_alive 0 gives its memory back
        unload = keep in (0, "0")
        gone = await waiting(partial(server.models.unload if unload else server.models.opened, name))
        reason = "unload" if unload else "load"
        if not gone:
            raise Refusal(BUSY, f"{name} has answers under way, and stays in memory; ask again later.", wait_s=WAIT_S)
        return JSONResponse({"model": name, "created_at": _now(), **said([]), "done": True, "done_reason": reason})
    if context is not None:
        worker, hold = await waiting(partial(server.models.worker, name))
        with hold:
            there = worker.model.engine.context
        if context > there:
            raise Refusal(
                BAD,
                f"num_ctx is {context}, and {name} was loaded with a context of {there}; start edge serve with a "
                "larger --context.",
                field="num_ctx",
            )
    began = time.perf_counter()
    answers = await Answers.of(server.models, name, Ask(prompt, [options], raw=isinstance(prompt, str), tools=tools))

    def last(finish: str) -> dict[str, Any]:
        return {"done": True, "done_reason": finish, **_times(answers.timings[0], began)}

    async def lines() -> AsyncGenerator[str, None]:
        try:
            async for part in answers.parts():
                found = {"model": name, "created_at": _now(), **said([part]), "done": False}
                if part.piece.finish_reason is not None:
                    found |= last(finish_of(part.piece.finish_reason))
                    server.count(name, answers.timings)
                elif not (part.text or part.piece.thoughts or part.calls):
                    continue
                yield json.dumps(found, ensure_ascii=False) + "\n"
        except EdgeError as e:
            yield json.dumps({"error": told_of(e)}) + "\n"

    if streamed:
        return AnswerStream(answers, lines(), "application/x-ndjson")
    parts = await answers.whole(request.is_disconnected)
    if parts is None:
        return Response(status_code=499)
    server.count(name, answers.timings)
    finish = finish_of(parts[0][-1].piece.finish_reason)
    return JSONResponse({"model": name, "created_at": _now(), **said(parts[0]), **last(finish)})


def _options(fields: Fields) -> tuple[GenerateOptions, int | None]:
    """The options of an answer, and the context that is wanted."""
    given = fields.given(OPTIONS)
    most = fields.integer("num_predict", least=-2)
    if most == 0:
        raise Refusal(BAD, "num_predict is 0, and an answer has a token at least.", field="num_predict")
    seed = fields.integer("seed", least=-1)
    options = GenerateOptions(
        **given,
        max_tokens=most if most is not None and most > 0 else None,  # below 0: as many as there is room for
        seed=RANDOM if seed is None or seed < 0 else seed,
        stop=fields.texts("stop"),
    )
    context = fields.integer("num_ctx", least=1)
    fields.unread(*MACHINE, *([] if "repetition_penalty" in given else ["repeat_last_n"]))
    for name, values in NEUTRAL.items():
        fields.only(name, values, f"{name} is not served, and may only be {values[0]}; leave it out.")
    fields.unread("mirostat_tau", "mirostat_eta")  # of a mirostat
    fields.end()
    return options, context


def _keep_alive(value: Any) -> int | float | str:
    """The time for which a model is to stay in memory, of which only 0 means something here."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(f"The keep_alive must be a number or a time such as 5m, not {shown(value)}.")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"It must be true or false, not {shown(value)}.")
    return value


def _text(number: int, value: Any) -> str:
    if not isinstance(value, str):
        raise InputError(f"The content of message {number} must be a text, not {shown(value)}.")
    return value


MESSAGES = MessageForm(
    {each: each for each in ("system", "user", "assistant", TOOL)},
    thoughts="thinking",
    content=_text,
    unread=(),
    images=True,
    empty=True,
    tool="tool_name",
)


def _times(timings: Timings, began: float) -> dict[str, int]:
    """Counts, and times in nanoseconds."""
    return {
        "total_duration": int((time.perf_counter() - began) * 1e9),
        "load_duration": 0,
        "prompt_eval_count": timings.prompt_tokens,
        "prompt_eval_duration": int(timings.prefill_s * 1e9),
        "eval_count": timings.generated_tokens,
        "eval_duration": int(timings.decode_s * 1e9),
    }


def _described(server: Server, name: str) -> dict[str, Any]:
    bundle = server.models.bundles[name]
    manifest = bundle.manifest
    made = datetime.datetime.fromtimestamp(bundle.root.stat().st_mtime, datetime.UTC)
    return {
        "name": name,
        "model": name,
        "modified_at": made.isoformat(),
        "size": sum(bundle.sizes.values()),
        "digest": hashlib.sha256((bundle.root / MANIFEST).read_bytes()).hexdigest(),
        "details": {
            "format": "onnx",
            "family": manifest.family,
            "families": [manifest.family],
            "parameter_size": "",
            "quantization_level": manifest.weights,
        },
    }


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")
