"""The address of a server whose models are on a cluster: it checks requests and passes them on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from prometheus_client import Metric, generate_latest
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from edge.cluster.relay import Relay
from edge.cluster.router import beginnings
from edge.errors import on_one_line
from edge.serve.answering import in_time, limited
from edge.serve.audio import MOST_SOUND, SOUND_S
from edge.serve.fields import read_object
from edge.serve.refusal import AWAY, BROKEN, WAIT_S, Refusal
from edge.serve.server import BODY_S, FIGURES, HEALTH, METRICS, MOST_BODY, Address, middleware

_log = logging.getLogger(__name__)

SOUND = "/v1/audio/"
PROMPTED = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/api/chat", "/api/generate"
PASSED_ON = (b"content-type",)  # headers
TRIES = 3  # replicas that a request may be given to, where they die
TAKEN_S = 60.0  # in which a replica takes a request
SOUNDS = 16  # requests with sound at a time, each of which is in memory as a whole
FIGURES_S = 10.0  # in which replicas tell their figures


@dataclass(frozen=True)
class Asked:
    """A request on its way to a replica. beginnings: of its prompt (`edge.cluster.router`)."""

    method: str
    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    beginnings: list[bytes]


class Front:
    """`app` is the ASGI application. handle: of the deployment of `edge.cluster.serving.Replica`."""

    def __init__(self, handle: Any, address: Address) -> None:
        self._handle, self._replica = handle, handle.options(stream=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = asyncio.Event()
        self._sounds = asyncio.Semaphore(SOUNDS)
        self.app = Starlette(
            routes=[
                Route(HEALTH, _health, methods=["GET"]),
                Route(FIGURES, self._figures, methods=["GET"]),
                Mount("/", app=self._pass_on),
            ],
            middleware=middleware(address),
            lifespan=self._life,
        )

    @asynccontextmanager
    async def _life(self, app: Starlette) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        yield

    def close(self) -> None:
        """End all answers, from any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._closing.set)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, whatever becomes of replicas."""
        async with self._sounds if scope["path"].startswith(SOUND) else nullcontext():
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        relay = Relay(scope, receive, send)
        try:
            asked = await _read(Request(scope, receive))
        except Refusal as e:
            await relay.end(e)
            return
        except ClientDisconnect:
            return
        gone, closing = asyncio.ensure_future(_gone(receive)), asyncio.ensure_future(self._closing.wait())
        try:
            for _ in range(TRIES):
                answering = asyncio.ensure_future(self._answered(asked, relay))
                try:
                    await asyncio.wait({answering, gone, closing}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    answering.cancel()
                if gone.done():
                    return
                if not answering.done():
                    await relay.end(Refusal(AWAY, "The server is closing; ask again.", wait_s=WAIT_S))
                    return
                if (lost := _lost(answering)) is None:
                    return
                if isinstance(lost, Refusal):
                    await relay.end(lost)
                    return
                _log.warning("What answered a request to %s is no longer there: %s.", asked.path, on_one_line(lost))
                if relay.begun:
                    break
                relay.drop()
            await relay.end(Refusal(AWAY, "The machine that answered is no longer there; ask again.", wait_s=WAIT_S))
        finally:
            gone.cancel()
            closing.cancel()

    async def _answered(self, asked: Asked, relay: Relay) -> None:
        """Give a request to a replica, and the response to the client."""
        messages = self._replica.answer.remote(asked)
        try:
            try:
                await asyncio.wait_for(anext(messages), TAKEN_S)
            except TimeoutError:
                raise Refusal(AWAY, "No machine of the cluster takes the request; ask again.", wait_s=WAIT_S) from None
            async for message in messages:
                await relay.add(message)
        except BaseException:
            messages.cancel()
            raise

    async def _figures(self, request: Request) -> Response:
        """The figures of all replicas, each of which has a label of its own."""
        told = await self._handle.broadcast("figures").results_async(timeout_s=FIGURES_S, return_exceptions=True)
        figures = _Together([each for each in told if isinstance(each, tuple)])
        return Response(generate_latest(figures), media_type=METRICS)


class _Together:
    """The figures of several replicas."""

    def __init__(self, told: list[tuple[str, list[Metric]]]) -> None:
        self._told = told

    def collect(self) -> Iterator[Metric]:
        """As a registry of `prometheus_client` has them."""
        found = dict[str, Metric]()
        for replica, families in self._told:
            for family in families:
                into = found.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                into.samples += [each._replace(labels={**each.labels, "replica": replica}) for each in family.samples]
        yield from found.values()


def _lost(answering: asyncio.Future[None]) -> BaseException | None:
    """The reason why an answer ended before its end: what befell its replica, or a refusal. None: it is whole."""
    if answering.cancelled():  # by the replica, as this one has not asked for it
        return asyncio.CancelledError("it was stopped")
    error: BaseException | None = answering.exception()
    if error is None or isinstance(error, Refusal):
        return error
    if isinstance(error, RayError | RayServeException) and not isinstance(error, RayTaskError):
        lost: BaseException = error
        return lost
    _log.error("A request failed in a way that nobody foresaw.", exc_info=error)
    return Refusal(BROKEN, "The server failed in a way that nobody foresaw; its log says more.")


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _gone(receive: Receive) -> None:
    """Wait until the client is no longer there."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _read(request: Request) -> Asked:
    """The whole request. Refusal where it is too large or too slow; what else is wrong with it, a replica says."""
    scope, path = request.scope, request.scope["path"]
    most, seconds = (MOST_SOUND, SOUND_S) if path.startswith(SOUND) else (MOST_BODY, BODY_S)
    body = bytearray()

    async def read() -> None:
        async for piece in limited(request, most):
            body.extend(piece)

    await in_time(read(), seconds)
    known: list[bytes] = []
    if body and path in PROMPTED:
        with suppress(Refusal):
            known = await run_in_threadpool(lambda: beginnings(read_object(bytes(body))))
    headers = [(name, value) for name, value in scope["headers"] if name in PASSED_ON]
    return Asked(request.method, path, scope["query_string"], headers, bytes(body), known)
