"""Connections to clients: one that asks nothing, or does not read what it asked for, is closed in time."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 512  # connections at a time, with those that ask nothing
REQUEST_S = 15.0  # in which the head of a request must be here, from its connection's beginning on
KEPT_S = 75  # for which a connection may rest between two requests
UNDER_WAY = 1 << 17  # bytes that a client has not read yet
UNREAD_S = 60.0  # in which a client must take some of what lies ready for it


class Connection(H11Protocol):
    """HTTP over one connection."""

    _request: asyncio.TimerHandle | None = None  # ends a connection without a request
    _unread: asyncio.TimerHandle | None = None  # ends one that is not read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST:
            transport.abort()
            return
        # An answer waits for its reader with little more than what is under way; the system would keep megabytes.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNDER_WAY)
        transport.set_write_buffer_limits(0)
        self._request = self.loop.call_later(REQUEST_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._request, self._unread):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        rests = self._request is None and (self.cycle is None or self.cycle.response_complete)
        if rests:  # another request begins
            self._request = self.loop.call_later(REQUEST_S, self.transport.abort)
        super().data_received(data)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and self._request is not None:
            self._request.cancel()
            self._request = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look_again()

    def _look_again(self) -> None:
        self._unread = self.loop.call_later(UNREAD_S, self._look, self.transport.get_write_buffer_size())

    def _look(self, before: int) -> None:
        """End a connection of whose bytes none were taken since there were so many."""
        if self.transport.get_write_buffer_size() < before:
            self._look_again()
        else:
            self.transport.abort()

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()


def config(app: Any, **more: Any) -> Config:
    """The settings of uvicorn. more: further ones."""
    return Config(
        app,
        loop="asyncio",  # Ray brings another one, which would be taken
        http=Connection,
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEPT_S,
        **more,
    )
