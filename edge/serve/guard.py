"""What is checked of every request before anything reads it: who asks, from which page, and under which name."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from edge.serve.refusal import AWAY, WAIT_S, Refusal, refused

MOST_REQUESTS = 512  # at a time
LOCAL = "localhost", "127.0.0.1", "::1"


def is_loopback(host: str) -> bool:
    """True if an address can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """An ASGI middleware.

    Args:
        app: what answers the requests that pass.
        key: that must be given as a bearer token; None: none is needed.
        open: paths that need none.
        origins: of web pages that may ask, besides the server's own.
        hosts: names under which the server may be reached; None: any. A web page can give its own name this machine's
            address (DNS rebinding), and would then be taken for the server's own.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        key: str | None,
        open: Collection[str],
        origins: Collection[str],
        hosts: Collection[str] | None,
    ) -> None:
        self._app, self._key, self._open, self._origins, self._hosts = app, key, open, origins, hosts
        self._there = 0  # requests that are under way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if (why := self._refused(path, Headers(scope=scope))) is not None:
            headers = {"WWW-Authenticate": "Bearer"} if why.status == 401 else None
            await refused(path, why, headers)(scope, receive, send)
            return
        self._there += 1
        try:
            if self._there > MOST_REQUESTS:
                busy = Refusal(AWAY, "Too many requests are open; ask again later.", wait_s=WAIT_S)
                await refused(path, busy)(scope, receive, send)
            else:
                await self._app(scope, receive, send)
        finally:
            self._there -= 1

    def _refused(self, path: str, headers: Headers) -> Refusal | None:
        host = headers.get("host", "")
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            name = ""
        if self._hosts is not None and name not in self._hosts:
            return Refusal(403, f"This server is not called {host[:100]!r}; ask it at 127.0.0.1.")
        origin = headers.get("origin")
        if origin is not None and origin not in self._origins and _place(origin) != host:
            return Refusal(
                403, f"Pages of {origin[:100]!r} may not ask this server; start it with --cors {origin[:100]}."
            )
        if self._key is None or path in self._open:
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode("latin-1"), self._key.encode()):
            return Refusal(401, "The API key is missing or wrong; give it as 'Authorization: Bearer KEY'.")
        return None


def _place(origin: str) -> str | None:
    """The host and the port of an origin; None where it is none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None
