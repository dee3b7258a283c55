"""The response to a request on its way from a replica to a client, who sees one, however many replicas it took."""

from __future__ import annotations

import json

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from edge.serve.answering import ends
from edge.serve.refusal import Refusal, refused, told_in

STREAMS = "text/event-stream", "application/x-ndjson"


class Relay:
    """A response that is kept back until it is whole or, where it is a stream, until that has begun."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._kept: list[Message] = []
        self._streams = False
        self._events = 0  # of the stream, that the client was sent
        self.begun, self.ended = False, False

    async def add(self, message: Message) -> None:
        """Take the next message of ASGI."""
        self._kept.append(message)
        if message["type"] == "http.response.start":
            kind, _, _ = Headers(raw=message["headers"]).get("content-type", "").partition(";")
            self._streams = kind in STREAMS
        elif ends(message) or self._streams:
            self.begun, self.ended = True, ends(message)
            while self._kept:
                each = self._kept.pop(0)
                self._events += bool(each.get("body"))
                await self._send(each)

    def drop(self) -> None:
        """Forget what was kept back: another replica begins the response again."""
        self._kept, self._streams = [], False

    async def end(self, refusal: Refusal) -> None:
        """End the response with an error: its status where nothing was sent, otherwise the last event of the stream."""
        path = self._scope["path"]
        if not self.begun:
            await refused(path, refusal)(self._scope, self._receive, self._send)
        elif not self.ended:
            body = broken_off(path, refusal, self._events).encode()
            await self._send({"type": "http.response.body", "body": body, "more_body": False})


def broken_off(path: str, refusal: Refusal, events: int) -> str:
    """The last event of a stream that cannot go on, in the protocol that a path is of. events: before it."""
    told = told_in(path, refusal)
    if not isinstance(told, dict):
        return json.dumps({"error": told}) + "\n"
    if path != "/v1/responses":
        return f"data: {json.dumps({'error': told})}\n\n"
    # The protocol has the fields of an error in the event; clients of OpenAI raise one where it is an object in there.
    event = {"type": "error", "sequence_number": events, **{name: told[name] for name in ("code", "message", "param")}}
    return f"event: error\ndata: {json.dumps(event | {'error': told})}\n\n"
