"""The description of all addresses in OpenAPI's form, which a server gives at `/openapi.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edge import __version__
from edge.embedding_format import EMBEDDER, RERANKER
from edge.runtime.options import DECODER, SPEECH, TEXT
from edge.serve import openapi_answers as answers
from edge.serve import openapi_requests as requests
from edge.serve.openapi_schema import NULL, Schema, either, one_of, text

if TYPE_CHECKING:
    from edge.serve.models import Models
    from edge.serve.server import Server

JSON, EVENTS, LINES, PLAIN, FORM = (
    "application/json",
    "text/event-stream",
    "application/x-ndjson",
    "text/plain",
    "multipart/form-data",
)
ALL = DECODER, TEXT, SPEECH, EMBEDDER, RERANKER


class Posted(NamedTuple):
    """An address that is posted to. about: what it does. asked: the requests it takes, and the kinds of models that
    each is for. answered: its answer, by the media type."""

    about: str
    asked: Sequence[tuple[Schema, Sequence[str]]]
    answered: Mapping[str, Schema]
    media: str = JSON


POSTED = {
    "/v1/chat/completions": Posted("A chat.", [(requests.CHAT, (DECODER,))], {JSON: answers.CHAT, EVENTS: text()}),
    "/v1/completions": Posted(
        "Goes on from a text, or turns one text into another.",
        [(requests.COMPLETION, (DECODER,)), (requests.OTHER_TEXT, (TEXT,))],
        {JSON: answers.COMPLETION, EVENTS: text()},
    ),
    "/v1/responses": Posted(
        "A chat in the form of OpenAI's Responses API; nothing is stored.",
        [(requests.RESPONSE, (DECODER,))],
        {JSON: answers.RESPONSE, EVENTS: text()},
    ),
    "/v1/embeddings": Posted("Vectors of texts.", [(requests.EMBEDDING, (EMBEDDER,))], {JSON: answers.EMBEDDINGS}),
    "/v1/rerank": Posted(
        "Ranks documents by how well they answer a query.", [(requests.RERANK, (RERANKER,))], {JSON: answers.RERANK}
    ),
    "/api/embed": Posted(
        "Vectors of texts in Ollama's protocol.", [(requests.OLLAMA_EMBED, (EMBEDDER,))], {JSON: answers.OLLAMA_EMBED}
    ),
    "/api/embeddings": Posted(
        "The vector of a text in Ollama's earlier form.",
        [(requests.OLLAMA_EMBEDDING, (EMBEDDER,))],
        {JSON: answers.OLLAMA_EMBEDDING},
    ),
    **{
        f"/v1/audio/{name}": Posted(
            about, [(requests.SOUND, (SPEECH,))], {JSON: answers.TRANSCRIPT, PLAIN: text()}, FORM
        )
        for name, about in (("transcriptions", "What is said."), ("translations", "What is said, in English."))
    },
    "/api/chat": Posted(
        "A chat in Ollama's protocol.",
        [(requests.OLLAMA_CHAT, (DECODER,))],
        {JSON: answers.OLLAMA_CHAT, LINES: text()},
    ),
    "/api/generate": Posted(
        "An answer to a prompt in Ollama's protocol.",
        [(requests.OLLAMA_GENERATE, (DECODER,))],
        {JSON: answers.OLLAMA_GENERATE, LINES: text()},
    ),
    "/api/show": Posted("A model.", [(requests.OLLAMA_SHOW, ALL)], {JSON: answers.OLLAMA_SHOW}),
}
GOT: Mapping[str, tuple[str, str, Schema]] = {
    "/v1/models": ("The models.", JSON, answers.MODELS),
    "/v1/models/{name}": ("A model.", JSON, answers.MODEL),
    "/api/tags": ("The models.", JSON, answers.OLLAMA_MODELS),
    "/api/ps": ("The models in memory.", JSON, answers.OLLAMA_MODELS),
    "/api/version": ("The version.", JSON, answers.OLLAMA_VERSION),
    "/health": ("Says that the server is there.", JSON, answers.HEALTH),
    "/metrics": ("Figures for Prometheus.", PLAIN, text()),
    "/openapi.json": ("This description.", JSON, {"type": "object"}),
    "/": ("A page to chat at.", "text/html", text()),
    "/page.js": ("Its program.", "text/javascript", text()),
    "/page.css": ("Its style.", "text/css", text()),
}


async def openapi(server: Server, request: Request) -> Response:
    """`GET /openapi.json`."""
    return JSONResponse(described(server.models))


def described(models: Models) -> dict[str, Any]:
    """The description of a server of these models."""
    by_kind = {kind: [name for name in models.bundles if models.kind(name) == kind] for kind in ALL}
    paths: dict[str, Any] = {}
    for path, got in GOT.items():
        about, media, schema = got
        paths[path] = {"get": _operation(path, about, {media: schema})}
    names = [*models.bundles]
    paths["/v1/models/{name}"]["parameters"] = [
        {"name": "name", "in": "path", "required": True, "schema": one_of(*names)}
    ]
    for path, posted in POSTED.items():
        asked = [
            _with_model(schema, [name for kind in kinds for name in by_kind[kind]], len(names) == 1)
            for schema, kinds in posted.asked
            if any(by_kind[kind] for kind in kinds)
        ]
        if asked:
            content = {posted.media: {"schema": asked[0] if len(asked) == 1 else either(*asked)}}
            operation = _operation(path, posted.about, posted.answered)
            paths[path] = {"post": operation | {"requestBody": {"required": True, "content": content}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "edge serve", "version": __version__, "description": "Models at an address."},
        "paths": paths,
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _with_model(schema: Schema, names: Sequence[str], alone: bool) -> Schema:
    """A request with the names of the models that it may be for; one that is alone need not be named."""
    model = either(one_of(*names), NULL) if alone else one_of(*names)
    required = schema["required"] if alone else [*schema["required"], "model"]
    return schema | {"properties": {"model": model, **schema["properties"]}, "required": required}


def _operation(path: str, about: str, answered: Mapping[str, Schema]) -> dict[str, Any]:
    error = answers.OLLAMA_ERROR if path.startswith("/api/") else answers.ERROR
    return {
        "summary": about,
        "responses": {
            "200": {"description": about, "content": {media: {"schema": schema} for media, schema in answered.items()}},
            "default": {"description": "What is wrong.", "content": {JSON: {"schema": error}}},
        },
    }
