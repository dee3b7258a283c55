"""The server: which address leads to which function, and what becomes of errors."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edge.errors import EdgeError, InputError
from edge.runtime.decode.answer import Timings
from edge.serve import audio, embeddings, ollama, openai, openapi, rerank, responses
from edge.serve.answering import in_time, limited
from edge.serve.fields import read_object
from edge.serve.guard import LOCAL, Guard, is_loopback
from edge.serve.metrics import Metrics
from edge.serve.models import Models
from edge.serve.refusal import AWAY, BAD, BROKEN, WAIT_S, Refusal, WorkerClosed, refused, told_of

_log = logging.getLogger(__name__)

MOST_BODY = 4 << 20  # bytes of a request
BODY_S = 60.0  # in which a request must be here
HEALTH, FIGURES = "/health", "/metrics"
METRICS = "text/plain; version=0.0.4"
HEADERS = {  # of the page: it loads nothing, and no other page may hold it in a frame
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
PAGE = {
    "/": ("page.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}

Handler = Callable[["Server", Request], Awaitable[Response]]


@dataclass(frozen=True)
class Address:
    """The address of a server. key: that requests must give; origins: of web pages that may ask.

    Raises:
        InputError: other machines could ask, and no key is set.
    """

    host: str
    port: int
    key: str | None = None
    origins: Collection[str] = ()

    def __post_init__(self) -> None:
        if self.key is None and not is_loopback(self.host):
            raise InputError(
                f"At {self.host} other machines can ask this server; give them a key, with --api-key or the variable "
                "EDGE_API_KEY."
            )


class Server:
    """Models at an address. `app` is the ASGI application."""

    def __init__(self, models: Models, address: Address, tell: Callable[[str], None] | None = None) -> None:
        self.models, self.started, self._tell = models, int(time.time()), tell
        self._metrics = Metrics(models)
        routes = [
            _route(self, "GET", HEALTH, _health),
            _route(self, "GET", FIGURES, _metrics),
            *(_route(self, "GET", path, _page) for path in PAGE),
            _route(self, "GET", "/openapi.json", openapi.openapi),
            _route(self, "GET", "/v1/models", openai.models),
            _route(self, "GET", "/v1/models/{name:path}", openai.model),
            _route(self, "POST", "/v1/chat/completions", openai.chat_completions),
            _route(self, "POST", "/v1/completions", openai.completions),
            _route(self, "POST", "/v1/embeddings", embeddings.embeddings),
            _route(self, "POST", "/v1/rerank", rerank.rerank),
            _route(self, "POST", "/v1/responses", responses.responses),
            _route(self, "POST", "/v1/audio/transcriptions", audio.transcriptions),
            _route(self, "POST", "/v1/audio/translations", audio.translations),
            _route(self, "GET", "/api/version", ollama.version),
            _route(self, "GET", "/api/tags", ollama.tags),
            _route(self, "GET", "/api/ps", ollama.ps),
            _route(self, "POST", "/api/show", ollama.show),
            _route(self, "POST", "/api/chat", ollama.chat),
            _route(self, "POST", "/api/generate", ollama.generate),
            _route(self, "POST", "/api/embed", embeddings.ollama),
            _route(self, "POST", "/api/embeddings", embeddings.ollama_one),
        ]
        handlers = {404: _nowhere, 405: _nowhere}
        self.app = Starlette(
            routes=routes,
            middleware=middleware(address),
            exception_handlers=handlers,
            lifespan=self._life,
        )

    @asynccontextmanager
    async def _life(self, app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await asyncio.to_thread(self.models.close)

    async def body(self, request: Request) -> dict[str, Any]:
        """The JSON object of a request.

        Raises:
            Refusal: it is none, too large, or too slow.
        """
        read = bytearray()

        async def receive() -> None:
            async for piece in limited(request, MOST_BODY):
                read.extend(piece)

        await in_time(receive(), BODY_S)
        return await run_in_threadpool(read_object, bytes(read))

    def count(self, model: str, timings: Sequence[Timings]) -> None:
        """Count the answers to a request, and tell of them where that is wanted: how many tokens, and how fast."""
        self._metrics.count(model, timings)
        if self._tell is not None:
            for each in timings:
                speed = each.decode_tokens_per_s
                first = "" if each.ttft_ms is None else f", the first after {each.ttft_ms:.0f} ms"
                self._tell(
                    f"{model}: {each.prompt_tokens} tokens of prompt ({each.cached_tokens} known), "
                    f"{each.generated_tokens} of answer{first}" + ("" if speed is None else f", {speed:.1f} tokens/s")
                )

    @property
    def metrics(self) -> Metrics:
        """The figures."""
        return self._metrics


def middleware(address: Address) -> list[Middleware]:
    """What checks each request to an address before anything reads it."""
    hosts = [*LOCAL, address.host] if address.key is None else None
    guard = Middleware(Guard, key=address.key, open=(HEALTH, *PAGE), origins=address.origins, hosts=hosts)
    cors = Middleware(CORSMiddleware, allow_origins=[*address.origins], allow_methods=["*"], allow_headers=["*"])
    return [*([cors] if address.origins else []), guard]


def _route(server: Server, method: str, path: str, handler: Handler) -> Route:
    async def handle(request: Request) -> Response:
        try:
            return await handler(server, request)
        except Refusal as e:
            return refused(path, e)
        except WorkerClosed:
            return refused(path, Refusal(AWAY, "The server is closing, or the model is; ask again.", wait_s=WAIT_S))
        except InputError as e:
            return refused(path, Refusal(BAD, str(e)))
        except RecursionError:
            return refused(path, Refusal(BAD, "The request is nested too deeply."))
        except EdgeError as e:  # which names files of this machine
            return refused(path, Refusal(BROKEN, told_of(e)))
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception:  # a client is told no more
            _log.exception("A request to %s failed in a way that nobody foresaw.", path)
            return refused(path, Refusal(BROKEN, "The server failed in a way that nobody foresaw; its log says more."))

    return Route(path, handle, methods=[method])


async def _nowhere(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    path = request.url.path[:100]
    why = Refusal(status, f"There is nothing at {request.method} {path}; see docs/guide/serve.md.")
    return refused(path, why, getattr(error, "headers", None))  # which say what methods there are


async def _health(server: Server, request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _metrics(server: Server, request: Request) -> Response:
    return Response(server.metrics.text(), media_type=METRICS)


async def _page(server: Server, request: Request) -> Response:
    name, kind = PAGE[request.url.path]
    return Response((files("edge.serve") / name).read_bytes(), media_type=kind, headers=HEADERS)
