"""The answer to one request in the form of OpenAI's Responses API, whole or as the events of a stream."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edge.errors import EdgeError
from edge.runtime.decode.generate_options import GenerateOptions
from edge.serve.answering import Answers, AnswerStream, Ask, Logprob, Part, finish_of
from edge.serve.openai_form import told_logprobs
from edge.serve.refusal import told_of
from edge.serve.tools import Call

if TYPE_CHECKING:
    from edge.serve.server import Server

Object = dict[str, Any]
THOUGHTS, WORDS = "reasoning", "message"  # types of items


class ResponseForm:
    """The form of the answer to one request. The whole answer is the response with which its stream ends.

    Args:
        server: which answers.
        model: by its name.
        options: of the answer.
        told: fields of a request that its response repeats.
    """

    def __init__(self, server: Server, model: str, options: GenerateOptions, told: Mapping[str, Any]) -> None:
        self._server, self._model, self._options, self._told = server, model, options, told
        self._id, self._created = _id("resp"), int(time.time())
        self._output: list[Object] = []
        self._open: Object | None = None  # the item that grows: thoughts or words
        self._pending: list[Logprob] = []  # of tokens whose text has not come
        self._count = 0  # of events
        self._answers: Answers

    async def respond(self, request: Request, ask: Ask, streamed: bool) -> Response:
        """Answer a request."""
        self._answers = await Answers.of(self._server.models, self._model, ask)
        if streamed:
            return AnswerStream(self._answers, self._stream(), "text/event-stream")
        parts = await self._answers.whole(request.is_disconnected)
        if parts is None:  # nobody reads it
            return Response(status_code=499)
        self._server.count(self._model, self._answers.timings)
        events = [event for part in parts[0] for event in self._came(part)]
        return JSONResponse(events[-1]["response"])

    async def _stream(self) -> AsyncGenerator[str, None]:
        try:
            for kind in ("created", "in_progress"):
                yield _written(self._about(kind, "in_progress"))
            async for part in self._answers.parts():
                if part.piece.finish_reason is not None:
                    self._server.count(self._model, self._answers.timings)
                for event in self._came(part):
                    yield _written(event)
        except EdgeError as e:
            failed = self._about("failed", "failed")
            failed["response"]["error"] = {"code": "server_error", "message": told_of(e)}
            yield _written(failed)

    def _came(self, part: Part) -> Iterator[Object]:
        """The events of a part of the answer."""
        self._pending += part.logprobs if part.piece.thoughts is None else ()
        if part.piece.thoughts:
            yield from self._grow(THOUGHTS, part.piece.thoughts)
        if part.text:
            yield from self._grow(WORDS, part.text)
        for call in part.calls:
            yield from self._called(call)
        if part.piece.finish_reason is None:
            return
        status = "completed" if finish_of(part.piece.finish_reason) == "stop" else "incomplete"
        if status == "completed" and not any(item["type"] != THOUGHTS for item in self._output):
            self._pending = []  # of the end, which is no text
            yield from self._grow(WORDS, "")
        yield from self._close(status)
        yield self._about(status, status)

    def _grow(self, kind: str, text: str) -> Iterator[Object]:
        """Add text to the thoughts or the words, which begin where they are not what grows."""
        if self._open is None or self._open["type"] != kind:
            yield from self._close()
            more: Object = {"summary": []} if kind == THOUGHTS else {"role": "assistant"}
            item = {"id": _id("rs" if kind == THOUGHTS else "msg"), "type": kind, "status": "in_progress"} | more
            self._open = item | {"content": [_part(kind)]}
            self._output.append(self._open)
            yield self._item("output_item.added", item | {"content": []})
            yield self._inner("content_part.added", part=_part(kind))
        assert self._open is not None
        (part,) = self._open["content"]
        part["text"] += text
        more = {}
        if kind == WORDS:
            more = {"logprobs": told_logprobs(self._answers.worker, self._pending)}
            part["logprobs"] += more["logprobs"]
            self._pending = []
        if text:
            yield self._inner(f"{part['type']}.delta", delta=text, **more)

    def _close(self, status: str = "completed") -> Iterator[Object]:
        """End the item that grows, if any."""
        if self._open is None:
            return
        (part,) = self._open["content"]
        more = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
        yield self._inner(f"{part['type']}.done", text=part["text"], **more)
        yield self._inner("content_part.done", part=part)
        self._open["status"] = status
        yield self._item("output_item.done", self._open)
        self._open = None

    def _called(self, call: Call) -> Iterator[Object]:
        """The events of a call, which is there as a whole."""
        yield from self._close()
        self._pending = []
        item = {"id": _id("fc"), "type": "function_call", "call_id": call.id, "name": call.name}
        done = item | {"arguments": call.said, "status": "completed"}
        self._output.append(done)
        yield self._item("output_item.added", item | {"arguments": "", "status": "in_progress"})
        place = {"item_id": item["id"], "output_index": len(self._output) - 1}
        yield self._event("function_call_arguments.delta", **place, delta=call.said)
        yield self._event("function_call_arguments.done", **place, name=call.name, arguments=call.said)
        yield self._item("output_item.done", done)

    def _inner(self, kind: str, **more: Any) -> Object:
        """An event of the part of the item that grows."""
        assert self._open is not None
        place = {"item_id": self._open["id"], "output_index": len(self._output) - 1, "content_index": 0}
        return self._event(kind, **place, **more)

    def _item(self, kind: str, item: Object) -> Object:
        """An event of the last item."""
        return self._event(kind, output_index=len(self._output) - 1, item=item)

    def _about(self, kind: str, status: str) -> Object:
        """An event of the response as a whole."""
        return self._event(kind, response=self._response(status))

    def _event(self, kind: str, **more: Any) -> Object:
        event = {"type": f"response.{kind}", "sequence_number": self._count, **more}
        self._count += 1
        return event

    def _response(self, status: str) -> Object:
        """The response at present."""
        options, ended = self._options, status in ("completed", "incomplete")
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "max_output_tokens": options.max_tokens,
            "model": self._model,
            "output": self._output,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": options.temperature,
            "text": {"format": {"type": "text"}},
            "top_p": options.top_p,
            "truncation": "disabled",
            "usage": self._usage() if ended else None,
            **self._told,
        }

    def _usage(self) -> Object:
        usage = self._answers.usage
        return {
            "input_tokens": usage["prompt_tokens"],
            # None is written for a price, as a service does it.
            "input_tokens_details": usage["prompt_tokens_details"] | {"cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": usage["completion_tokens_details"],
            "total_tokens": usage["total_tokens"],
        }


def _part(kind: str) -> Object:
    """The part of an item before it has text."""
    if kind == THOUGHTS:
        return {"type": "reasoning_text", "text": ""}
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def _id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"


def _written(event: Object) -> str:
    return f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n"
