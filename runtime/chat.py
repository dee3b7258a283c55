"""Chats: a conversation whose KV cache stays from turn to turn, so that only new tokens are prefilled."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, NamedTuple, Unpack

from edge.errors import InputError
from edge.runtime.decode.answer import (
    FinishReason,
    Piece,
    Result,
    answer,
    check_length,
    check_prompt,
    collect,
    ends_of,
    own,
)
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.decode.stream import Stream
from edge.runtime.keywords import GenerateKeywords
from edge.runtime.options import shown, with_keywords
from edge.runtime.text.template import Message, check_conversation, check_messages

if TYPE_CHECKING:
    from edge.runtime.engine.cache import KVCache
    from edge.runtime.engine.engine import Engine
    from edge.runtime.engine.prefixes import Known
    from edge.runtime.memory.shares import Share
    from edge.runtime.model import Model


UNDER_WAY = (
    "An answer of this chat is still under way; read its stream to the end or close it, or use a chat for each "
    "conversation."
)


class _Turn(NamedTuple):
    """A conversation whose last message is to be answered. seen: the chat's messages when it was made; text, tokens:
    the whole prompt."""

    seen: list[Message]
    messages: list[Message]
    text: str
    tokens: list[int]


class _Said(NamedTuple):
    """A conversation as the model knows it. tokens: without the last answer's end token; text: theirs, as the template
    writes it."""

    tokens: list[int]
    text: str


UNSAID = _Said([], "")


def check_chat(options: GenerateOptions) -> None:
    """Raise InputError where options are none of a chat's answer."""
    if options.particles > 1:
        raise InputError(
            "Aligned sampling draws one of several answers, and a chat goes on with the one that it says; draw by "
            "masks, or give a prompt."
        )


class Chat:
    """A conversation with a model. `Model.chat` makes one.

    `messages` holds the turns so far, the answers as they were shown; what the model thought before an answer is its
    `reasoning_content`, of which the chat template decides what the model reads again.

    Args:
        system: a system message to begin with.
        messages: a conversation to go on from, whose last message is an answer; its system message is its own.

    Raises:
        InputError: a system message where the bundle has no chat template; or messages that are no such conversation,
            or too long for the context.
    """

    def __init__(self, model: Model, *, system: str | None = None, messages: Sequence[Message] | None = None) -> None:
        self._model = model
        self.messages: list[Message] = []
        self._opening: list[Message] = []
        self._busy = threading.Lock()  # while an answer is under way
        if system is not None and not isinstance(system, str):
            raise InputError(f"The system message must be a text, not {shown(system)}.")
        if system is not None and messages is not None:
            raise InputError("A conversation that is given has a system message of its own; leave out the other.")
        if system is not None:
            messages = [{"role": "system", "content": system}]
        begun = self._opened(() if messages is None else messages)
        self._prefixes = model.prefixes
        self._cache = model.engine.new_cache()
        self._cached: list[int] = []  # the tokens in the KV cache
        self._alike = 0  # of these: those that were read as if the conversation began there
        self._left: Known | None = None  # the same, as other texts may begin like it
        self._capacity = self._cache.capacity
        self._written = 0  # most rows of the cache that were in use: they keep their memory
        self._share: Share | None = None  # of a memory limit: what the cache takes of it
        self._begin(begun)

    def reset(self, messages: Sequence[Message] | None = None) -> None:
        """Start over: forget every turn but the system message. messages: the conversation to go on from instead, as
        for a new chat; a system message alone starts over with that one.

        Raises:
            InputError: an answer is under way; or the messages are refused, which changes nothing.
        """
        with self._alone():
            self._begin(list(self._opening) if messages is None else self._opened(messages))

    def undo(self) -> str:
        """Forget the last message and its answer; returns the message. What was said before stays in the KV cache.

        Raises:
            InputError: nothing was said yet, or an answer is under way.
        """
        with self._alone():
            last = self._last_message()
            message = self.messages[last]["content"]
            self.messages = self.messages[:last]
            return message

    def _opened(self, messages: Sequence[Message]) -> list[Message]:
        """A conversation to go on from, checked."""
        if not isinstance(messages, Sequence) or isinstance(messages, str | bytes | bytearray | memoryview):
            raise InputError(f"A conversation is a list of messages, and not {shown(messages)}.")
        found: list[Message] = [*messages]
        check_conversation(found)
        found = [{"role": each["role"], "content": each["content"]} for each in found]
        model = self._model
        if found and found[0]["role"] == "system" and model.template is None:
            raise InputError("The system message has no place, because the bundle has no chat template.")
        if found:
            text = model.render([*found, {"role": "user", "content": "?"}])  # hardly anything is shorter than that
            check_length(len(text), model.most_tokens)
            check_prompt(model.text.encode_prompt(text), model.engine, "shorten it")
        return found

    def _begin(self, messages: list[Message]) -> None:
        self._opening = [each for each in messages[:1] if each["role"] == "system"]
        self.messages = messages
        self._cached = self._cached[: self._alike]  # what both begin with, such as a system message, is not read again
        self._anew = True  # whether nothing was said since
        self._said: dict[int, _Said] = {}  # by the number of messages, where a turn of this chat ended

    def _last_message(self) -> int:
        """Index of the user's last message; InputError where there is none."""
        for i in reversed(range(len(self.messages))):
            if self.messages[i]["role"] == "user":
                return i
        raise InputError("Nothing was said yet in this conversation.")

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
    def system(self) -> str | None:
        """The system message; None where there is none."""
        return self._opening[0]["content"] if self._opening else None

    @property
    def cached_tokens(self) -> int:
        """Tokens in the KV cache."""
        return len(self._cached)

    @property
    def capacity(self) -> int:
        """Maximum tokens of the conversation."""
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
        return self._stream(lambda options: self._turn(message, options), options, keywords)

    def generate(
        self, message: str, options: GenerateOptions | None = None, **keywords: Unpack[GenerateKeywords]
    ) -> Result:
        """Say something and return the whole answer; see `stream`."""
        with closing(self.stream(message, options, **keywords)) as pieces:
            return collect(pieces)

    def stream_again(
        self, options: GenerateOptions | None = None, **keywords: Unpack[GenerateKeywords]
    ) -> Generator[Piece, None, None]:
        """Stream another answer to the last message, which replaces the one before from its first piece on; see
        `stream`. It differs where the options do, or where tokens are drawn."""

        def turn(options: GenerateOptions) -> _Turn:
            last = self._last_message()
            return self._turn(self.messages[last]["content"], options, last)

        return self._stream(turn, options, keywords)

    def regenerate(self, options: GenerateOptions | None = None, **keywords: Unpack[GenerateKeywords]) -> Result:
        """Return another answer to the last message; see `stream_again`."""
        with closing(self.stream_again(options, **keywords)) as pieces:
            return collect(pieces)

    def _stream(
        self, make: Callable[[GenerateOptions], _Turn], options: GenerateOptions | None, keywords: GenerateKeywords
    ) -> Generator[Piece, None, None]:
        started = time.perf_counter_ns()
        options = self.settled(with_keywords(own(options), keywords))
        if self._busy.locked():
            raise InputError(UNDER_WAY)
        return Stream(self._answer(make, make(options), options, started))

    def settled(self, options: GenerateOptions) -> GenerateOptions:
        """The options with what is not set as the model's makers set it for chats.

        Raises:
            InputError: options that do not go together, or not with a chat.
        """
        check_chat(options)
        return self._model.settled(options)

    def _turn(self, message: str, options: GenerateOptions, before: int | None = None) -> _Turn:
        """The conversation with this message after its first `before` messages, or after all."""
        model, seen = self._model, self.messages
        messages: list[Message] = [*seen[:before], {"role": "user", "content": message}]
        check_messages(messages)
        text = model.render(messages, options.think, effort=options.effort)
        check_length(len(text), model.most_tokens)
        tokens = self._tokens(text, self._said.get(len(messages) - 1, UNSAID))
        check_prompt(tokens, model.engine, "start the conversation over")
        return _Turn(seen, messages, text, tokens)

    def _answer(
        self, make: Callable[[GenerateOptions], _Turn], turn: _Turn, options: GenerateOptions, started: int
    ) -> Generator[Piece, None, None]:
        model = self._model
        engine, text, chunk, drafts = model.engine, model.text, model.prefill_chunk, model.speculation
        with self._alone():
            if turn.seen is not self.messages:  # something was said since the stream was made
                turn = make(options)
            parts: list[str] = []
            thoughts: list[str] = []  # empty where the model did not think
            sampled: list[int] = []
            self._prefixes.withdraw(self._left)
            self._left = None
            room = self._take_share(engine, turn, options)
            try:
                for piece in answer(
                    *(engine, text, self._begun(turn, room), turn.tokens, options),
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
                self._cache, self._written = engine.new_cache(), 0
                raise
            finally:
                self._rest_share(engine)

    def _take_share(self, engine: Engine, turn: _Turn, options: GenerateOptions) -> bool:
        """Have room for an answer in a memory limit, where there is one; False where it was interrupted before."""
        if engine.plan is None or engine.shares is None:
            return True
        most = ends_of(options, self._capacity, self._model.block(turn.text)).most
        rows = max(self._written, min(self._capacity, len(turn.tokens) + most))
        size = engine.plan.answer_bytes(rows)
        taken = engine.shares.take(size, options.interrupted, instead=self._share, drop=weakref.WeakMethod(self._drop))
        self._share = taken or self._share
        return taken is not None

    def _rest_share(self, engine: Engine) -> None:
        """Keep what the cache takes of a memory limit until somebody needs it."""
        if self._share is not None:
            assert engine.plan is not None
            self._written = max(self._written, self._cache.length)
            self._share.rest(engine.plan.cache_bytes(self._written) + engine.plan.state_bytes)

    def _drop(self) -> None:
        """Give up the cache: the next answer reads the whole conversation again."""
        self._cache, self._cached, self._written = self._model.engine.new_cache(), [], 0

    def _begun(self, turn: _Turn, room: bool) -> KVCache:
        """The cache with what is known of a prompt; of other texts only where there is room for it. What it holds is
        known again when the answer ended as it should."""
        cache, prompt, prefixes = self._cache, turn.tokens, self._prefixes
        shared = min(_shared(self._cached, prompt), cache.reusable, len(prompt) - 1)  # the last one's logits are needed
        if self._anew:
            shared = prefixes.whole(shared)
        self._cached = []
        self._said = {end: said for end, said in self._said.items() if end < len(turn.messages)}
        known = prefixes.begin(prompt, cache, shared) if room else 0
        if not known:
            cache.truncate(shared)
        shared = max(shared, known)
        alike = self._anew or known or not shared or prefixes.exact
        self._alike = prefixes.whole(len(prompt)) if alike else min(self._alike, shared)
        self._anew = False
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
        if self._prefixes.exact:
            self._alike = len(self._cached)
        self._left = self._prefixes.leave(self._cached, self._cache, self._alike, self._written)
        if thoughts:
            return  # the text is encoded anew: the template leaves thoughts out of what the model reads again
        # After a stop string the tokens say more than the text that was shown: the text is encoded anew.
        if finish == "stop":
            if sampled[-1] not in self._model.text.eos:
                return
            tokens = tokens[:-1]
        self._said[len(self.messages)] = _Said(tokens, turn.text + self._model.text.controls.hide(said, answer=True))

    def _tokens(self, prompt_text: str, said: _Said) -> list[int]:
        """The conversation's tokens. What was said keeps the tokens it was said with, because encoding an answer
        need not give back the tokens that the model chose; only what follows is encoded, where it begins with a special
        token, at which every tokenizer splits.
        """
        text = self._model.text
        if said.tokens and prompt_text.startswith(said.text):
            new = text.encode(prompt_text[len(said.text) :])
            if new and new[0] in text.special:
                return said.tokens + new
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
