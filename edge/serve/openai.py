"""OpenAI's protocol: chat completions, completions and models."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edge.errors import InputError
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.decode.sampling import RANDOM
from edge.runtime.decode.text2text_options import Text2TextOptions
from edge.runtime.options import DECODER, TEXT, any_value, flag, shown, texts
from edge.runtime.text.template import TOOL
from edge.serve.answering import TOP_LOGPROBS, Ask, finish_of, while_there
from edge.serve.bias import read_bias
from edge.serve.fields import Fields
from edge.serve.messages import MessageForm, text_of_parts
from edge.serve.openai_form import ChatForm, TextForm
from edge.serve.refusal import BAD, Refusal
from edge.serve.tools import Tool, read_choice, read_tools

if TYPE_CHECKING:
    from edge.runtime.decode.answer import Result
    from edge.runtime.text2text import Text2Text
    from edge.serve.server import Server

MOST_TEXTS = 256  # of a request
MOST_ANSWERS = 16  # to one request
# Tokens of thoughts.
EFFORTS = {"none": 0, "minimal": 128, "low": 512, "medium": 2048, "high": None, "xhigh": None, "max": None}
# Labels of the caller's own, and what asks for the computers of a service, or for speed.
LABELS = (
    *("user", "metadata", "service_tier", "safety_identifier", "prediction"),
    *("prompt_cache_key", "prompt_cache_retention"),
)
SAMPLING = "temperature", "top_p", "top_k", "min_p", "repetition_penalty"


async def models(server: Server, request: Request) -> Response:
    """`GET /v1/models`."""
    return JSONResponse({"object": "list", "data": [_listed(server, name) for name in server.models.bundles]})


async def model(server: Server, request: Request) -> Response:
    """`GET /v1/models/NAME`."""
    return JSONResponse(_listed(server, server.models.name(request.path_params["name"])))


def _listed(server: Server, name: str) -> dict[str, Any]:
    kind = server.models.kind(name)  # of our own, for the page
    return {"id": name, "object": "model", "created": server.started, "owned_by": "edge", "kind": kind}


async def chat_completions(server: Server, request: Request) -> Response:
    """`POST /v1/chat/completions`."""
    fields = Fields(await server.body(request))
    name = server.models.name(fields.text("model"))
    server.models.check_kind(name, DECODER)
    messages = fields.take("messages", MESSAGES.read)
    if messages is None:
        raise Refusal(BAD, "The request has no messages.", field="messages")
    wants = fields.flag("logprobs")
    top = fields.integer("top_logprobs", most=TOP_LOGPROBS)
    if top is not None and not wants:
        raise Refusal(BAD, "top_logprobs needs logprobs to be true.", field="top_logprobs")
    options = read_options(fields, ("max_completion_tokens", "max_tokens"))
    streamed, usage = _streaming(fields)
    effort = fields.take("reasoning_effort", any_value)
    options = options if effort is None else thinking(options, effort, "reasoning_effort")
    options = replace(options, **fields.take("response_format", partial(read_form, "response_format"), {}))
    tools, choice, parallel = read_tools_and_choice(fields, read_tools, read_choice)
    count, bias = _count(fields), read_bias(fields, server.models.vocabulary(name))
    fields.end()
    answers, told = _several(options, count), (top or 0) if wants else None
    ask = Ask(messages, answers, top=told, tools=tools, choice=choice, bias=bias, parallel=parallel)
    form = ChatForm(server, name, "chat.completion", "chatcmpl")
    return await form.respond(request, ask, streamed, usage)


async def completions(server: Server, request: Request) -> Response:
    """`POST /v1/completions`: the prompt goes to the model as it is."""
    fields = Fields(await server.body(request))
    name = server.models.name(fields.text("model"))
    if server.models.kind(name) == TEXT:
        return await _other_text(server, request, name, fields)
    server.models.check_kind(name, DECODER)
    prompt = fields.take("prompt", _prompt)
    if prompt is None:
        raise Refusal(BAD, "The request has no prompt.", field="prompt")
    top = fields.integer("logprobs", most=TOP_LOGPROBS)
    options = read_options(fields, ("max_tokens",))
    streamed, usage = _streaming(fields)
    fields.only("echo", [False], "The prompt is not repeated; leave echo out.")
    fields.only("best_of", [1], "One answer is made, and not the best of several; leave best_of out.")
    count, bias = _count(fields), read_bias(fields, server.models.vocabulary(name))
    fields.end()
    ask = Ask(prompt, _several(options, count), raw=True, top=top, bias=bias)
    return await TextForm(server, name, "text_completion", "cmpl").respond(request, ask, streamed, usage)


async def _other_text(server: Server, request: Request, name: str, fields: Fields) -> Response:
    """The answer of a model that turns one text into another."""
    prompts = fields.take("prompt", texts("prompt"))
    if prompts is None:
        raise Refusal(BAD, "The request has no prompt.", field="prompt")
    names = {"source_language": "source", "target_language": "target"}
    names |= {each: each for each in ("beams", "temperature", "seed")}
    options = Text2TextOptions(**fields.given(names), max_tokens=fields.integer("max_tokens", least=1))
    fields.only("stream", [False], "A text that is turned into another comes whole; leave stream out.")
    fields.only("n", [1], "One text is made of each; leave n out.")
    fields.unread("user")
    fields.end()
    if len(prompts) > MOST_TEXTS:
        raise Refusal(BAD, f"A request has at most {MOST_TEXTS} texts, not {len(prompts)}.", field="prompt")

    def work(interrupted: Callable[[], bool]) -> list[Result]:
        def turn(model: Text2Text) -> list[Result]:
            return [model.generate(text, options, interrupted=interrupted) for text in prompts]

        return server.models.run(name, turn)

    found = await while_there(request, work)
    choices = [
        {"index": i, "text": each.text, "logprobs": None, "finish_reason": finish_of(each.finish_reason)}
        for i, each in enumerate(found)
    ]
    prompt, answered = (sum(getattr(each, what) for each in found) for what in ("prompt_tokens", "generated_tokens"))
    usage = {"prompt_tokens": prompt, "completion_tokens": answered, "total_tokens": prompt + answered}
    made = {"id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion", "created": int(time.time())}
    return JSONResponse(made | {"model": name, "choices": choices, "usage": usage})


def read_options(fields: Fields, lengths: Sequence[str]) -> GenerateOptions:
    """The options of answers. lengths: what a request may call the maximum number of tokens."""
    given = fields.given({each: each for each in SAMPLING})
    length = [fields.integer(each, least=1) for each in lengths]
    options = GenerateOptions(
        **given,
        max_tokens=next((each for each in length if each is not None), None),
        seed=fields.integer("seed"),
        stop=fields.texts("stop"),
    )
    if options.seed is None:
        options = replace(options, seed=RANDOM)
    options = replace(options, regex=fields.text("regex"), grammar=fields.text("grammar"))
    fields.only("modalities", [["text"]], "Answers are text; leave modalities out.")
    fields.only("store", [False], "Nothing is stored here; leave store out.")
    fields.unread(*LABELS)
    return options


def _streaming(fields: Fields) -> tuple[bool, bool]:
    """True if answers are streamed, and if the counts of tokens come in the end."""
    streamed, usage = fields.flag("stream"), False
    if (more := fields.object("stream_options")) is not None:
        usage = more.flag("include_usage")
        more.unread("include_obfuscation")
        more.end()
    return streamed, usage


def _count(fields: Fields) -> int:
    """The number of answers that are asked for."""
    return fields.integer("n", least=1, most=MOST_ANSWERS) or 1


def _several(options: GenerateOptions, count: int) -> list[GenerateOptions]:
    """The options of each answer: each draws by a seed of its own."""
    seeds = [options.seed if not isinstance(options.seed, int) else options.seed + i for i in range(count)]
    return [replace(options, seed=seed) for seed in seeds]


def read_tools_and_choice(
    fields: Fields, tools: Callable[[Any], list[Tool]], choice: Callable[[Any], str]
) -> tuple[list[Tool], str, bool]:
    """The tools of a request, which of them are to be called, each read by the check that is given, and whether several
    may be."""
    offered, chosen = fields.take("tools", tools, []), fields.take("tool_choice", choice, "auto")
    if chosen not in ("auto", "none") and not offered:
        raise Refusal(BAD, "The tool_choice demands a call, and there are no tools.", field="tool_choice")
    return offered, chosen, fields.take("parallel_tool_calls", flag("parallel_tool_calls"), True)


def read_form(about: str, value: Any) -> dict[str, Any]:
    """The options of an answer's form, by what a field of a request says of it."""
    fields = Fields(value if isinstance(value, dict) else {}, about)
    kind = fields.text("type")
    schema: Any = None
    if kind == "json_object":
        schema = {"type": "object"}
    elif kind == "json_schema":
        inner = fields.object("json_schema") or Fields({})
        schema = inner.take("schema", any_value)
        inner.unread("name", "description", "strict")
        inner.end()
        if not isinstance(schema, dict | bool):
            raise InputError(f"The {about} has no schema, which is an object.")
    elif kind != "text":
        raise InputError(f"The type of the {about} must be text, json_object or json_schema, not {shown(kind)}.")
    fields.end()
    return {} if schema is None else {"json_schema": schema}


def thinking(options: GenerateOptions, effort: Any, field: str) -> GenerateOptions:
    """The options with what a field of a request says of thoughts: a limit of tokens, and for chat templates that know
    one an effort."""
    if not isinstance(effort, str) or effort not in EFFORTS:
        raise Refusal(BAD, f"The {field} must be {', '.join(EFFORTS)}, not {shown(effort)}.", field=field)
    level = {"none": None, "minimal": "low", "xhigh": "high", "max": "high"}.get(effort, effort)
    return replace(options, think=effort != "none", think_tokens=EFFORTS[effort] or None, effort=level)


def _prompt(value: Any) -> str:
    found = value[0] if isinstance(value, list) and len(value) == 1 else value
    if not isinstance(found, str):
        raise InputError(f"The prompt must be one text, not {shown(value)}.")
    return found


MESSAGES = MessageForm(
    {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": TOOL},
    thoughts="reasoning_content",
    content=partial(text_of_parts, ("text",)),
    unread=("refusal", "annotations"),
)
