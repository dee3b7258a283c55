"""Answers on their way from a model's thread to a client."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from anyio import CapacityLimiter, to_thread
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from edge.errors import EdgeError, InputError
from edge.runtime.batch.answer import BatchAnswer
from edge.runtime.decode.answer import FinishReason, Piece, Timings
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.decode.sampling import Sampler
from edge.serve.bias import Bias
from edge.serve.calls import Format
from edge.serve.refusal import BROKEN, TOO_LARGE, TOO_SLOW, Refusal, WorkerClosed
from edge.serve.tool_talk import told
from edge.serve.tools import Call, Tool
from edge.serve.worker import Job, Worker

if TYPE_CHECKING:
    from edge.runtime.model import Prompt
    from edge.serve.models import Models

_log = logging.getLogger(__name__)

T = TypeVar("T")
COMPILING = 2  # forms of answers that are compiled at a time, which may take seconds
TOP_LOGPROBS = 20  # most likely tokens of each place, at most
BEGUN = "edge.begun"  # of a scope's extensions: a stream is to open with its first part, and not before


@dataclass(frozen=True)
class Ask:
    """What a request asks of a model. options: one for each of the answers that are wanted. top: the number of likely
    tokens whose log probabilities are told; None: of no token. tools: that may be called. choice: of them, as
    `read_choice` gives it. bias: of the answers' tokens."""

    prompt: Prompt
    options: Sequence[GenerateOptions]
    raw: bool = False
    top: int | None = None
    tools: Sequence[Tool] = ()
    choice: str = "auto"
    bias: Bias | None = None
    parallel: bool = True


@dataclass
class Logprob:
    """A token that was chosen, and its log probability before any rule; likely: the likeliest tokens and theirs."""

    token: int
    value: float
    likely: list[tuple[int, float]]


class AnswerStream(StreamingResponse):
    """A stream of answers, of which nothing more is computed once it has ended, or could not begin."""

    def __init__(self, answers: Answers, content: AsyncGenerator[str, None], media_type: str) -> None:
        super().__init__(content, media_type=media_type, headers={"Cache-Control": "no-cache"})
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if BEGUN in scope.get("extensions", {}):
            send = self._once_begun(send)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answers.cancel()

    def _once_begun(self, send: Send) -> Send:
        """What keeps messages back until a part of an answer has come, or the stream has ended."""
        kept: list[Message] = []

        async def send_later(message: Message) -> None:
            kept.append(message)
            if self._answers.begun or ends(message):
                while kept:
                    await send(kept.pop(0))

        return send_later


def ends(message: Message) -> bool:
    """True if a message of ASGI is the last one of its response."""
    return message["type"] == "http.response.body" and not message.get("more_body", False)


@cache
def _compiling() -> CapacityLimiter:
    return CapacityLimiter(COMPILING)


class _Watching:
    """A sampler that notes the log probability of what it chooses."""

    def __init__(self, sampler: Sampler, top: int, found: list[Logprob]) -> None:
        self._sampler, self._top, self._found = sampler, top, found

    def __call__(self, logits: NDArray[np.float32]) -> int:
        token = self._sampler(logits)
        largest = float(logits.max())
        total = largest + float(np.log(np.exp(logits - largest, dtype=np.float64).sum()))
        best = np.argpartition(-logits, self._top)[: self._top] if self._top else np.empty(0, np.int64)
        likely = sorted(((int(i), float(logits[i]) - total) for i in best), key=lambda pair: (-pair[1], pair[0]))
        self._found.append(Logprob(token, float(logits[token]) - total, likely))
        return token


@dataclass
class Part:
    """Something of an answer that came. index: which of the answers. text: what of it is no call of a tool. calls: that
    are complete now. logprobs: of its token, where that was asked."""

    index: int
    piece: Piece
    text: str
    calls: Sequence[Call] = ()
    logprobs: list[Logprob] = field(default_factory=list)


class Answers:
    """The answers to one request. Leave `parts` early, and nothing more is computed."""

    def __init__(self, worker: Worker, ask: Ask) -> None:
        self.worker, self._ask = worker, ask
        self._answers: list[BatchAnswer] = []
        self._loop = asyncio.get_running_loop()
        self._came = asyncio.Queue[Part | BatchAnswer]()
        self._logprobs: list[list[Logprob]] = [[] for _ in ask.options]
        self._thoughts = 0  # tokens of them that came
        self.begun = False  # whether a part came

    @classmethod
    async def of(cls, models: Models, name: str, ask: Ask) -> Answers:
        """Ask a model, which is loaded where it is not in memory.

        Raises:
            EdgeError: the model cannot be loaded, or the request cannot be answered.
        """
        while True:
            worker, hold = await waiting(partial(models.worker, name))
            with hold:
                answers = cls(worker, ask)
                try:
                    await answers._begin()
                    return answers
                except WorkerClosed:  # something ended it, or the server closes
                    await asyncio.sleep(0)

    @property
    def timings(self) -> list[Timings]:
        """The times and counts of each answer."""
        return [answer.timings for answer in self._answers]

    @property
    def usage(self) -> dict[str, Any]:
        """OpenAI's counts of tokens. Drafted ones are among the answer's where they were right."""
        timings = self.timings
        prompt, answered = timings[0].prompt_tokens, sum(each.generated_tokens for each in timings)
        figures = [each.speculation for each in timings if each.speculation is not None]
        accepted, drafted = sum(f.accepted for f in figures), sum(f.drafted for f in figures)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": answered,
            "total_tokens": prompt + answered,
            "prompt_tokens_details": {"cached_tokens": max(each.cached_tokens for each in timings)},
            "completion_tokens_details": {
                "reasoning_tokens": self._thoughts,
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": drafted - accepted,
            },
        }

    async def _begin(self) -> None:
        """Let the answers wait for their turn."""
        self.worker.check_room(len(self._ask.options))
        forms = any(each.form is not None for each in self._ask.options) or self._ask.choice not in ("auto", "none")
        self._answers = await to_thread.run_sync(self._made, limiter=_compiling() if forms else None)
        self.worker.ask([Job(answer, self._put) for answer in self._answers])

    def _made(self) -> list[BatchAnswer]:
        form = self.format
        return [self._make(i, options, form) for i, options in enumerate(self._ask.options)]

    @property
    def format(self) -> Format | None:
        """The form of calls in the answers; None where no tools may be called."""
        if not self._ask.tools or self._ask.choice == "none":
            return None
        return Format(self.worker.model)

    def _make(self, index: int, options: GenerateOptions, form: Format | None) -> BatchAnswer:
        ask, noted, seen = self._ask, self._logprobs[index], 0
        if form is not None and ask.choice != "auto":
            if options.form is not None:
                raise InputError("An answer that must call a tool has a form already; leave the other one out.")
            name = None if ask.choice == "required" else ask.choice[1:]
            options = replace(options, grammar=form.grammar(ask.tools, name))
        tools = ask.tools if form is not None else ()
        calls = None if form is None else form.parser(tools)
        prompt = ask.prompt
        if not isinstance(prompt, str):
            prompt, tools = told(self.worker.model.template, prompt, tools)

        def deliver(piece: Piece) -> None:
            nonlocal seen
            self._thoughts += piece.thoughts is not None and piece.token_id is not None
            new = noted[seen : seen + 1] if piece.token_id is not None else []
            seen += len(new)
            text, before = piece.text, 0
            if form is not None and calls is not None:
                known = piece.token_id is not None and piece.thoughts is None
                mark = form.tokens.get(piece.token_id or 0, "") if known else ""
                before, text = len(calls.found), calls.push(text + mark)
                text += calls.end() if piece.finish_reason is not None else ""
            end = None if ask.parallel else 1
            self._put(Part(index, piece, text, calls.found[before:end] if calls is not None else (), new))

        def wrap(sampler: Sampler) -> Sampler:
            sampler = sampler if ask.bias is None else ask.bias.over(sampler)
            return sampler if ask.top is None else _Watching(sampler, ask.top, noted)

        return self.worker.make(prompt, options, deliver, raw=ask.raw, wrap=wrap, tools=tools)

    def _put(self, came: Part | BatchAnswer) -> None:
        """Hand something over from the model's thread."""
        try:
            self._loop.call_soon_threadsafe(self._came.put_nowait, came)
        except RuntimeError:  # the server has ended
            self.cancel()

    def cancel(self) -> None:
        """Let nothing more be computed."""
        for answer in self._answers:
            answer.cancelled = True

    async def parts(self) -> AsyncGenerator[Part, None]:
        """What comes of the answers, until all have ended.

        Raises:
            EdgeError: an answer failed.
        """
        left = len(self._answers)
        try:
            while left:
                came = await self._came.get()
                if isinstance(came, Part):
                    self.begun = True
                    yield came
                elif isinstance(came.error, EdgeError):
                    raise came.error
                elif came.error is not None:  # a client is told no more
                    _log.error("An answer failed in a way that nobody foresaw: %s", came.error)
                    raise Refusal(BROKEN, "The answer failed in a way that nobody foresaw; the server's log says more.")
                else:
                    left -= 1
        finally:
            self.cancel()

    async def whole(self, gone: Callable[[], Awaitable[bool]]) -> list[list[Part]] | None:
        """All parts of each answer; None where the client went away before."""
        found: list[list[Part]] = [[] for _ in self._answers]

        async def collect() -> None:
            async for part in self.parts():
                found[part.index].append(part)

        task = asyncio.ensure_future(collect())
        try:
            while not (await asyncio.wait([task], timeout=1.0))[0]:
                if await gone():
                    return None
            task.result()
        finally:
            task.cancel()
            self.cancel()
        return found


async def in_time(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """Wait for a request to be here; Refusal where it takes longer than so many seconds."""
    try:
        return await asyncio.wait_for(work, seconds)
    except TimeoutError:
        raise Refusal(TOO_SLOW, f"The request was not here after {seconds:g} s.") from None


async def limited(request: Request, most: int) -> AsyncGenerator[bytes, None]:
    """The body of a request in pieces; Refusal once it is larger than `most` bytes."""
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > most:
            raise Refusal(TOO_LARGE, f"The request has more than {most >> 20} MiB.")
        yield piece


@cache
def _waiting() -> CapacityLimiter:
    return CapacityLimiter(math.inf)


async def waiting(work: Callable[[], T]) -> T:
    """Run in a thread of its own what may wait long, for a model or its turn, so that others need not wait for one."""
    return await to_thread.run_sync(work, limiter=_waiting())


async def while_there(request: Request, work: Callable[[Callable[[], bool]], T]) -> T:
    """Run `work` in a thread, with a function that says whether the client went away meanwhile."""
    gone = threading.Event()
    task = asyncio.ensure_future(waiting(partial(work, gone.is_set)))
    try:
        while not (await asyncio.wait([task], timeout=1.0))[0]:
            if await request.is_disconnected():
                gone.set()
        return task.result()
    finally:
        gone.set()


def text_of(parts: Sequence[Part]) -> str:
    """The text of an answer's parts."""
    return "".join(part.text for part in parts)


def calls_of(parts: Sequence[Part]) -> list[Call]:
    """The calls of tools in an answer's parts."""
    return [call for part in parts for call in part.calls]


def thoughts_of(parts: Sequence[Part]) -> str | None:
    """The thoughts of an answer's parts; None where there are none."""
    found = [part.piece.thoughts for part in parts if part.piece.thoughts is not None]
    return "".join(found) if any(found) else None


def finish_of(reason: FinishReason | None) -> str:
    """The reason why an answer ended, as both protocols call it."""
    return "stop" if reason == "stop" else "length"
