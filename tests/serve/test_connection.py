"""Connections that ask nothing, or are not read, are closed in time, and others are not."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

pytest.importorskip("uvicorn")

from edge.serve import connection

WAIT_S = 30.0
LARGE = 12 << 20  # bytes: more than the system keeps for who reads slowly


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing ends by time that is not the subject of a test."""
    monkeypatch.setattr(connection, "REQUEST_S", 2 * WAIT_S)
    monkeypatch.setattr(connection, "UNREAD_S", 2 * WAIT_S)


class Look(NamedTuple):
    """What a connection looks at again after a while: whether it still has so many bytes."""

    whose: connection.Connection
    unread: int
    timer: asyncio.TimerHandle


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Look]:
    """One for each time that a connection waits for its reader."""
    found, look_again = list[Look](), connection.Connection._look_again

    def noted(self: connection.Connection) -> None:
        look_again(self)
        assert self._unread is not None
        found.append(Look(self, self.transport.get_write_buffer_size(), self._unread))

    monkeypatch.setattr(connection.Connection, "_look_again", noted)
    return found


class App:
    """Answers with bytes without end at /endless, with many at once at /large, else with a word."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while scope["path"] == "/endless":
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
                if (await self.there(receive)) is False:
                    return
            await send({"type": "http.response.body", "body": b"x" * LARGE if scope["path"] == "/large" else b"word"})
        finally:
            self.ended.set()

    async def there(self, receive: Any) -> bool:
        try:
            message = await asyncio.wait_for(receive(), 0.001)
        except TimeoutError:
            return True
        return bool(message["type"] != "http.disconnect")


@contextmanager
def serving(app: App) -> Iterator[Callable[..., socket.socket]]:
    """A function that opens connections to a server of this application."""
    uvicorn = pytest.importorskip("uvicorn")
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(connection.config(app))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    opened: list[socket.socket] = []

    def connect(*, small: bool = False) -> socket.socket:
        made = socket.socket()
        if small:  # with as little room for what nobody reads as can be
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.settimeout(WAIT_S)
        made.connect(listening.getsockname())
        opened.append(made)
        return made

    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield connect
    finally:
        for each in opened:
            each.close()
        server.should_exit = True
        thread.join(WAIT_S)
        listening.close()
        assert not thread.is_alive()


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


def closed(made: socket.socket) -> bool:
    """True once the other side has closed a connection without a word."""
    try:
        return made.recv(1) == b""
    except ConnectionResetError:
        return True


def asked(made: socket.socket, path: str = "/") -> bytes:
    made.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    response = http.client.HTTPResponse(made)
    response.begin()
    return response.read()


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n"], ids=["nothing", "cut", "a head"])
def test_a_connection_that_asks_nothing_is_closed(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "REQUEST_S", 0.5)
    with serving(App()) as connect:
        made = connect()
        made.sendall(sent)
        assert closed(made)


def test_a_head_that_comes_by_and_by_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "REQUEST_S", 0.5)
    with serving(App()) as connect:
        for first in (b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"):  # also after a request
            made = connect()
            made.sendall(first)
            with pytest.raises((BrokenPipeError, ConnectionResetError)):
                for _ in range(100):
                    made.sendall(b"G")
                    time.sleep(0.05)


def test_a_connection_may_rest_between_two_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "REQUEST_S", 3.0)
    with serving(App()) as connect:
        made = connect()
        assert asked(made) == b"word"
        time.sleep(4.0)
        assert asked(made) == b"word"


def test_an_answer_that_nobody_reads_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "UNREAD_S", 0.5)
    app = App()
    with serving(app) as connect:
        made = connect(small=True)
        made.sendall(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
        assert app.ended.wait(WAIT_S)


def test_an_answer_that_is_read_goes_on(looks: list[Look]) -> None:
    app = App()
    with serving(app) as connect:
        made = connect()
        made.sendall(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
        for count in range(1, 6):
            wait_until(lambda count=count: len(looks) >= count)
            timer = looks[count - 1].timer
            wait_until(lambda timer=timer: bool(made.recv(1 << 20)) and timer.cancelled())
        assert made.recv(1 << 20) and not app.ended.is_set()


def test_a_large_answer_may_be_read_slowly(looks: list[Look]) -> None:
    """However slowly: what counts is that some was read between two looks."""
    with serving(App()) as connect:
        made, read = connect(), 0
        made.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        for count in range(1, 6):
            wait_until(lambda count=count: len(looks) >= count)
            whose, unread, _ = looks[-1]
            while whose.transport.get_write_buffer_size() >= unread:
                read += len(made.recv(1 << 16))
            whose.loop.call_soon_threadsafe(whose._look, unread)  # as the timer does
        while piece := made.recv(1 << 16):
            read += len(piece)
        assert read > LARGE


def test_there_are_no_more_connections_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MOST", 2)
    with serving(App()) as connect:
        first, _ = connect(), connect()
        assert closed(connect())
        assert asked(first) == b"word"
