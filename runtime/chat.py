"""Chats: a conversation whose KV cache stays from turn to turn, so that only new tokens are prefilled."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, NamedTuple, Unpack

from edge.errors import InputError
from edge.runtime.decode.answer import (
    FinishReason,
    GenerateOptions,
    Piece,
    Result,
    answer,
    check_length,
    check_prompt,
    collect,
    ends_of,
    own,
)
from edge.runtime.decode.stream import Stream
from edge.runtime.keywords import GenerateKeywords, with_keywords
from edge.runtime.options import shown
from edge.runtime.text.template import Message, check_messages

if TYPE_CHECKING:
    from edge.runtime.engine.cache import KVCache
    from edge.runtime.engine.engine import Engine
    from edge.runtime.memory.shares import Share
    from edge.runtime.model import Model


UNDER_WAY = (
    "An answer of this chat is still under way; read its stream to the end or close it, or use a chat for each "
    "conversation."
)


class _Turn(NamedTuple):
    """A conversation whose last message is to be answered. before: the messages before it, as the chat had them. text,
    tokens: the whole prompt."""

    before: list[Message]
    messages: list[Message]
    text: str
    tokens: list[int]


class Chat:
    """A conversation with a model. `Model.chat` makes one.

    `messages` holds the turns so far, the answers as they were shown; what the model thought before an answer is its
    `reasoning_content`, of which the chat template decides what the model reads again.

    Raises:
        InputError: a system message where the bundle has no chat template.
    """

    def __init__(self, model: Model, *, system: str | None = None) -> None:
        if system is not None and not isinstance(system, str):
            raise InputError(f"The system message must be a text, not {shown(system)}.")
        if system is not None and model.template is None:
            raise InputError("The system message has no place, because the bundle has no chat template.")
        self._model = model
        self._opening: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self._busy = threading.Lock()  # while an answer is under way
        self._cache = model.engine.new_cache()
        self._capacity = self._cache.capacity
        self._share: Share | None = None  # of a memory limit: what the cache takes of it
        self._forget()

    def reset(self) -> None:
        """Start over: forget every turn but the system message; InputError while an answer is under way."""
        with self._alone():
            self._forget()

    def _forget(self) -> None:
        self.messages: list[Message] = list(self._opening)
        self._cached: list[int] = []  # the tokens in the KV cache
        self._said: list[int] = []  # the tokens of the whole conversation, without the last answer's end token
        self._said_text = ""  # their text, as the template writes it

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nothing else changes the conversation meanwhile; InputError where something does already."""
        if not self._busy.acquire(blocking=False):
            raise InputError(UNDER_WAY)
        try:
            yield
        finally:
            self._busy.release()

    @property
    def cached_tokens(self) -> int:
        """Tokens in the KV cache."""
        return len(self._cached)

    @property
    def capacity(self) -> int:
        """Most tokens that the conversation can have."""
        return self._capacity

    def stream(
        self, message: str, options: GenerateOptions | None = None, **keywords: Unpack[GenerateKeywords]
    ) -> Generator[Piece, None, None]:
        """Say something and stream the answer. What was said of it counts also when it is cut short.

        The answer is under way from its first piece on until it ends, its `close` is called, or nobody has it any more.
        A stream of which no piece was taken changes nothing; what was said in other ones meanwhile comes before it.

        Raises:
            InputError: the message is empty, the conversation does not fit into the context any more, or another answer
                is under way.
        """
        started = time.perf_counter_ns()
        options = self._model.settled(with_keywords(own(options), keywords))
        if self._busy.locked():
            raise InputError(UNDER_WAY)
        return Stream(self._answer(message, self._turn(message, options.think), options, started))

    def generate(
        self, message: str, options: GenerateOptions | None = None, **keywords: Unpack[GenerateKeywords]
    ) -> Result:
        """Say something and return the whole answer; see `stream`."""
        with closing(self.stream(message, options, **keywords)) as pieces:
            return collect(pieces)

    def _turn(self, message: str, think: bool | None) -> _Turn:
        """The conversation with this message."""
        model, before = self._model, self.messages
        messages: list[Message] = [*before, {"role": "user", "content": message}]
        check_messages(messages)
        text = model.render(messages, think)
        check_length(len(text), model.most_tokens)
        tokens = self._tokens(text)
        check_prompt(tokens, model.engine, "start the conversation over")
        return _Turn(before, messages, text, tokens)

    def _answer(
        self, message: str, turn: _Turn, options: GenerateOptions, started: int
    ) -> Generator[Piece, None, None]:
        model = self._model
        engine, text, chunk, drafts = model.engine, model.text, model.prefill_chunk, model.speculation
        with self._alone():
            if turn.before is not self.messages:  # something was said since the stream was made
                turn = self._turn(message, options.think)
            parts: list[str] = []
            thoughts: list[str] = []  # empty where the model did not think
            sampled: list[int] = []
            self._take_share(engine, turn, options)
            try:
                for piece in answer(
                    *(engine, text, self._begun(turn.tokens), turn.tokens, options),
                    chunk=chunk,
                    started_ns=started,
                    speculation=drafts,
                    block=model.block(turn.text),
                ):
                    parts.append(piece.text)
                    if piece.thoughts is not None:
                        thoughts.append(piece.thoughts)
                    if piece.token_id is not None:
                        sampled.append(piece.token_id)
                    last = piece
                    yield piece
                self._keep(turn, parts, thoughts, sampled, last.finish_reason)
            except GeneratorExit:  # nobody wants the rest: all is as after the last piece
                self._keep(turn, parts, thoughts, sampled, last.finish_reason)
                raise
            except BaseException:  # what the cache holds, or whether the last piece counts, nobody knows
                if any(parts) or any(thoughts):
                    self.messages = [*turn.messages, _said(parts, thoughts)]
                self._cache = engine.new_cache()
                raise
            finally:
                self._rest_share(engine)

    def _take_share(self, engine: Engine, turn: _Turn, options: GenerateOptions) -> None:
        """Have room for an answer in a memory limit, where there is one."""
        if engine.plan is None:
            return
        assert engine.shares is not None
        most = ends_of(options, self._capacity, self._model.block(turn.text)).most
        size = engine.plan.answer_bytes(min(self._capacity, len(turn.tokens) + most))
        taken = engine.shares.take(size, options.interrupted, instead=self._share, drop=weakref.WeakMethod(self._drop))
        self._share = taken or self._share

    def _rest_share(self, engine: Engine) -> None:
        """Keep what the cache takes of a memory limit until somebody needs it."""
        if self._share is not None:
            assert engine.plan is not None
            self._share.rest(engine.plan.cache_bytes(self._cache.length))

    def _drop(self) -> None:
        """Give up the cache: the next answer reads the whole conversation again."""
        self._cache, self._cached = self._model.engine.new_cache(), []

    def _begun(self, prompt: list[int]) -> KVCache:
        """The cache with what it has of a prompt. What it holds is known again when the answer ended as it should."""
        cache = self._cache
        shared = min(_shared(self._cached, prompt), cache.reusable)
        self._cached, self._said = [], []
        cache.truncate(min(shared, len(prompt) - 1))  # the last token is run in any case: its logits are needed
        return cache

    def _keep(
        self,
        turn: _Turn,
        parts: list[str],
        thoughts: list[str],
        sampled: list[int],
        finish: FinishReason | None,
    ) -> None:
        """Remember an answer as far as it was shown."""
        said, tokens = "".join(parts), turn.tokens + sampled
        self.messages = [*turn.messages, _said(parts, thoughts)]
        self._cached = tokens[: self._cache.length]
        if thoughts:
            return  # the text is encoded anew: the template leaves thoughts out of what the model reads again
        self._said_text = turn.text + self._model.text.controls.hide(said, answer=True)
        # After a stop string the tokens say more than the text that was shown: the text is encoded anew.
        if finish != "stop":
            self._said = tokens
        elif sampled[-1] in self._model.text.eos:
            self._said = tokens[:-1]

    def _tokens(self, prompt_text: str) -> list[int]:
        """The conversation's tokens. What was said keeps the tokens it was said with, because encoding an answer
        need not give back the tokens that the model chose; only what follows is encoded, where it begins with a special
        token, at which every tokenizer splits.
        """
        text = self._model.text
        if self._said and prompt_text.startswith(self._said_text):
            new = text.encode(prompt_text[len(self._said_text) :])
            if new and new[0] in text.special:
                return self._said + new
        return text.encode_prompt(prompt_text)


def _said(parts: list[str], thoughts: list[str]) -> Message:
    """The assistant's turn."""
    turn: Message = {"role": "assistant", "content": "".join(parts)}
    return {**turn, "reasoning_content": "".join(thoughts)} if any(thoughts) else turn


def _shared(a: list[int], b: list[int]) -> int:
    """The length of the longest common prefix."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
