"""The answers to one request in the form of OpenAI's protocol, whole or in a stream."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edge.errors import EdgeError
from edge.serve.answering import (
    Answers,
    AnswerStream,
    Ask,
    Logprob,
    Part,
    calls_of,
    finish_of,
    text_of,
    thoughts_of,
)
from edge.serve.refusal import told_of
from edge.serve.tools import Call

if TYPE_CHECKING:
    from edge.serve.server import Server
    from edge.serve.worker import Worker


class ChatForm:
    """The form of the answers to one request, whole or in a stream.

    Args:
        server: which answers.
        model: by its name.
        kind: what OpenAI calls a whole answer.
        prefix: of its id.
    """

    def __init__(self, server: Server, model: str, kind: str, prefix: str) -> None:
        self._server, self._model, self._kind = server, model, kind
        self._id, self._created = f"{prefix}-{secrets.token_hex(12)}", int(time.time())
        self._worker: Worker
        self._calls = dict[int, int]()  # that were streamed, by the answer's number

    async def respond(self, request: Request, ask: Ask, streamed: bool, usage: bool) -> Response:
        """Answer a request."""
        answers = await Answers.of(self._server.models, self._model, ask)
        self._worker = answers.worker
        if streamed:
            stream = self._events(answers, len(ask.options), ask.top is not None, usage)
            return AnswerStream(answers, stream, "text/event-stream")
        parts = await answers.whole(request.is_disconnected)
        if parts is None:  # nobody reads it
            return Response(status_code=499)
        self._server.count(self._model, answers.timings)
        choices = [self.choice(i, each, ask.top is not None) for i, each in enumerate(parts)]
        return JSONResponse(self._object(self._kind, choices) | {"usage": answers.usage})

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }

    async def _events(self, answers: Answers, count: int, logprobs: bool, usage: bool) -> AsyncGenerator[str, None]:
        """The events of a stream."""
        kind = self.chunk_kind
        try:
            for begun in self.begun(count):
                yield _event(self._object(kind, [begun]))
            async for part in answers.parts():
                if (delta := self.delta(part, logprobs)) is not None:
                    yield _event(self._object(kind, [delta]))
        except EdgeError as e:
            yield _event({"error": {"message": told_of(e), "type": "server_error", "param": None, "code": None}})
            return
        self._server.count(self._model, answers.timings)
        if usage:
            yield _event(self._object(kind, []) | {"usage": answers.usage})
        yield "data: [DONE]\n\n"

    @property
    def chunk_kind(self) -> str:
        """What OpenAI calls a part of a stream."""
        return f"{self._kind}.chunk"

    def begun(self, count: int) -> list[dict[str, Any]]:
        """The first events of a stream."""
        empty = {"role": "assistant", "content": ""}
        return [{"index": i, "delta": empty, "logprobs": None, "finish_reason": None} for i in range(count)]

    def delta(self, part: Part, logprobs: bool) -> dict[str, Any] | None:
        """What a part adds to a stream; None: nothing."""
        piece, delta = part.piece, dict[str, Any]()
        if piece.thoughts:
            delta["reasoning_content"] = piece.thoughts
        if part.text:
            delta["content"] = part.text
        if part.calls:
            delta["tool_calls"] = [
                {"index": i} | _call(call) for i, call in enumerate(part.calls, self._calls.get(part.index, 0))
            ]
            self._calls[part.index] = self._calls.get(part.index, 0) + len(part.calls)
        finish = None if piece.finish_reason is None else self.finish(part, self._calls.get(part.index, 0) > 0)
        if not delta and finish is None and not part.logprobs:
            return None
        told = self.logprobs(part.logprobs) if logprobs else None
        return {"index": part.index, "delta": delta, "logprobs": told, "finish_reason": finish}

    def choice(self, index: int, parts: Sequence[Part], logprobs: bool) -> dict[str, Any]:
        """A whole answer."""
        calls, text = calls_of(parts), text_of(parts)
        message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else ""), "refusal": None}
        if calls:
            message["tool_calls"] = [_call(call) for call in calls]
        if (thoughts := thoughts_of(parts)) is not None:
            message["reasoning_content"] = thoughts
        told = self.logprobs([each for part in parts for each in part.logprobs]) if logprobs else None
        finish = self.finish(parts[-1], bool(calls))
        return {"index": index, "message": message, "logprobs": told, "finish_reason": finish}

    def finish(self, part: Part, called: bool) -> str:
        """The reason why an answer ended, whose last part this is. called: whether it called tools."""
        found = finish_of(part.piece.finish_reason)
        return "tool_calls" if called and found == "stop" else found

    def logprobs(self, found: Sequence[Logprob], begin: int = 0) -> dict[str, Any]:
        """Log probabilities in the form of this protocol. begin: characters before these tokens."""

        return {"content": told_logprobs(self._worker, found), "refusal": None}

    def token(self, token: int) -> str:
        """The text of a token."""
        return _text(self._worker, token)


class TextForm(ChatForm):
    """The form of completions."""

    def __init__(self, server: Server, model: str, kind: str, prefix: str) -> None:
        super().__init__(server, model, kind, prefix)
        self._lengths = dict[int, int]()  # characters of tokens that were streamed, by the answer's number

    @property
    def chunk_kind(self) -> str:
        return self._kind

    def begun(self, count: int) -> list[dict[str, Any]]:
        return []

    def delta(self, part: Part, logprobs: bool) -> dict[str, Any] | None:
        piece = part.piece
        finish = None if piece.finish_reason is None else finish_of(piece.finish_reason)
        if not piece.text and finish is None and not part.logprobs:
            return None
        told = None
        if logprobs:
            begin = self._lengths.get(part.index, 0)
            told = self.logprobs(part.logprobs, begin)
            self._lengths[part.index] = begin + sum(map(len, told["tokens"]))
        return {"index": part.index, "text": piece.text, "logprobs": told, "finish_reason": finish}

    def choice(self, index: int, parts: Sequence[Part], logprobs: bool) -> dict[str, Any]:
        told = self.logprobs([each for part in parts for each in part.logprobs]) if logprobs else None
        finish = finish_of(parts[-1].piece.finish_reason)
        return {"index": index, "text": text_of(parts), "logprobs": told, "finish_reason": finish}

    def logprobs(self, found: Sequence[Logprob], begin: int = 0) -> dict[str, Any]:
        tokens = [self.token(each.token) for each in found]
        return {
            "tokens": tokens,
            "token_logprobs": [each.value for each in found],
            "top_logprobs": [{self.token(token): value for token, value in each.likely} for each in found],
            "text_offset": [begin + sum(map(len, tokens[:i])) for i in range(len(tokens))],
        }


def told_logprobs(worker: Worker, found: Sequence[Logprob]) -> list[dict[str, Any]]:
    """Log probabilities of tokens, and of the likeliest ones in the place of each."""

    def said(token: int, value: float) -> dict[str, Any]:
        text = _text(worker, token)
        return {"token": text, "logprob": value, "bytes": list(text.encode())}

    return [
        said(each.token, each.value) | {"top_logprobs": [said(*likely) for likely in each.likely]} for each in found
    ]


def _text(worker: Worker, token: int) -> str:
    return worker.model.text.decode([token])


def _call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.said}}


def _event(found: dict[str, Any]) -> str:
    return f"data: {json.dumps(found, ensure_ascii=False)}\n\n"
