"""Vectors of texts, in OpenAI's protocol and in Ollama's."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edge.embedding_format import EMBEDDER
from edge.errors import InputError
from edge.runtime.embed.embed_options import EmbedOptions
from edge.runtime.options import shown
from edge.serve.answering import while_there
from edge.serve.fields import Fields
from edge.serve.refusal import BAD, Refusal

if TYPE_CHECKING:
    from edge.runtime.embed.embedder import Embedder
    from edge.serve.server import Server

MOST_TEXTS = 2048  # of a request
FORMS = ("float", "base64")
Input = Sequence[str] | Sequence[Sequence[int]]


class _Made(NamedTuple):
    vectors: NDArray[np.float32]
    tokens: int


async def embeddings(server: Server, request: Request) -> Response:
    """`POST /v1/embeddings`."""
    fields = Fields(await server.body(request))
    name = server.models.name(fields.text("model"))
    server.models.check_kind(name, EMBEDDER)
    given = fields.take("input", _input)
    if given is None:
        raise Refusal(BAD, "The request has no input.", field="input")
    options = _options(fields)
    form = fields.text("encoding_format") or "float"
    if form not in FORMS:
        raise Refusal(
            BAD, f"The encoding_format must be {' or '.join(FORMS)}, not {shown(form)}.", field="encoding_format"
        )
    fields.unread("user")
    fields.end()
    made = await _embed(server, request, name, given, options)
    written = _in_base64 if form == "base64" else _in_numbers
    data = [{"object": "embedding", "index": i, "embedding": written(each)} for i, each in enumerate(made.vectors)]
    usage = {"prompt_tokens": made.tokens, "total_tokens": made.tokens}
    return JSONResponse({"object": "list", "data": data, "model": name, "usage": usage})


async def ollama(server: Server, request: Request) -> Response:
    """`POST /api/embed`: nothing is cut unless the request says `truncate`."""
    fields = Fields(await server.body(request))
    name = server.models.name(fields.text("model"))
    server.models.check_kind(name, EMBEDDER)
    given = fields.take("input", _input, [])
    options = _options(fields)
    _unused(fields)
    began = time.perf_counter()
    made = await _embed(server, request, name, given if given != [""] else [], options)
    return JSONResponse(
        {
            "model": name,
            "embeddings": [_in_numbers(each) for each in made.vectors],
            "total_duration": int((time.perf_counter() - began) * 1e9),
            "load_duration": 0,
            "prompt_eval_count": made.tokens,
        }
    )


async def ollama_one(server: Server, request: Request) -> Response:
    """`POST /api/embeddings`: the vector of one text, in Ollama's earlier form."""
    fields = Fields(await server.body(request))
    name = server.models.name(fields.text("model"))
    server.models.check_kind(name, EMBEDDER)
    text = fields.text("prompt")
    _unused(fields)
    made = await _embed(server, request, name, [text] if text else [], EmbedOptions())
    return JSONResponse({"embedding": [number for each in made.vectors for number in _in_numbers(each)]})


def _options(fields: Fields) -> EmbedOptions:
    return EmbedOptions(
        prompt=fields.text("prompt"), dimensions=fields.integer("dimensions", least=1), truncate=fields.flag("truncate")
    )


def _unused(fields: Fields) -> None:
    """Take the fields of Ollama's that change no vector; refuse the rest."""
    fields.unread("keep_alive")
    fields.only("options", [{}], "Options shape answers, and there is none; leave options out.")
    fields.end()


async def _embed(server: Server, request: Request, name: str, given: Input, options: EmbedOptions) -> _Made:
    """The vectors of texts, or of token ids, and how many tokens these have."""
    ids = [each for each in given if not isinstance(each, str)]

    def work(interrupted: Callable[[], bool]) -> _Made:
        def turn(model: Embedder) -> _Made:
            texts = [each for each in given if isinstance(each, str)]
            read = model.framed(ids, options) if ids else model.read(texts, options)
            return _Made(model.vectors(read.ids, options, interrupted=interrupted), read.tokens)

        return server.models.run(name, turn)

    return await while_there(request, work)


def _input(value: Any) -> Input:
    """A text, texts, token ids of a text, or of texts."""
    listed = value if isinstance(value, list) else [value]
    if listed and all(_is_token(each) for each in listed):
        listed = [listed]
    if len(listed) > MOST_TEXTS:
        raise InputError(f"A request has at most {MOST_TEXTS} texts, not {len(listed)}.")
    if all(isinstance(each, str) for each in listed):
        return listed
    if all(isinstance(each, list) and each and all(map(_is_token, each)) for each in listed):
        return listed
    raise InputError(f"The input must be a text, token ids, or a list of either, not {shown(value)}.")


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _in_numbers(vector: NDArray[np.float32]) -> list[float]:
    found: list[float] = vector.tolist()
    return found


def _in_base64(vector: NDArray[np.float32]) -> str:
    return base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode()
