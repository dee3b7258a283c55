"""Chats: a conversation whose KV cache stays from turn to turn, so that only new tokens are prefilled."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Unpack

from edge.errors import InputError
from edge.runtime.decode.answer import GenerateOptions, Piece, Result, answer, check_room, collect, own
from edge.runtime.keywords import GenerateKeywords, with_keywords
from edge.runtime.text.template import Message, check_messages

if TYPE_CHECKING:
    from edge.runtime.model import Model


class Chat:
    """A conversation with a model. `Model.chat` makes one.

    `messages` holds the turns so far, the answers as they were shown.

    Raises:
        InputError: a system message where the bundle has no chat template.
    """

    def __init__(self, model: Model, *, system: str | None = None) -> None:
        if system is not None and model.template is None:
            raise InputError("The system message has no place, because the bundle has no chat template.")
        self._model = model
        self._opening: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self._cache = model.engine.new_cache()
        self.reset()

    def reset(self) -> None:
        """Start over: forget every turn but the system message."""
        self.messages: list[Message] = list(self._opening)
        self._cache.reset()
        self._cached: list[int] = []  # the tokens in the KV cache
        self._said: list[int] = []  # the tokens of the whole conversation, without the last answer's end token
        self._said_text = ""  # their text, as the template writes it

    @property
    def cached_tokens(self) -> int:
        """Tokens in the KV cache."""
        return len(self._cached)

    @property
    def capacity(self) -> int:
        """Most tokens that the conversation can have."""
        return self._cache.capacity

    def stream(
        self, message: str, options: GenerateOptions | None = None, **keywords: Unpack[GenerateKeywords]
    ) -> Iterator[Piece]:
        """Say something and stream the answer. What was said of it counts also when it is cut short.

        Raises:
            InputError: the message is empty, or the conversation does not fit into the context any more.
        """
        started = time.perf_counter_ns()
        options = with_keywords(own(options), keywords)
        messages: list[Message] = [*self.messages, {"role": "user", "content": message}]
        check_messages(messages)
        prompt_text = self._render(messages)
        prompt = self._tokens(prompt_text)
        check_room(len(prompt), self._model.engine, "start the conversation over")
        shared = _shared(self._cached, prompt)
        shared = min(shared, self._cache.reusable)
        self._cache.truncate(min(shared, len(prompt) - 1))  # the last token is run in any case: its logits are needed
        self._cached = prompt[: self._cache.length]
        return self._answer(messages, prompt_text, prompt, options, started)

    def generate(
        self, message: str, options: GenerateOptions | None = None, **keywords: Unpack[GenerateKeywords]
    ) -> Result:
        """Say something and return the whole answer; see `stream`."""
        return collect(self.stream(message, options, **keywords))

    def _answer(
        self, messages: list[Message], prompt_text: str, prompt: list[int], options: GenerateOptions, started: int
    ) -> Iterator[Piece]:
        model = self._model
        engine, text, chunk, drafts = model.engine, model.text, model.prefill_chunk, model.speculation
        shown: list[str] = []
        sampled: list[int] = []
        ended = False
        try:
            for piece in answer(
                engine, text, self._cache, prompt, options, chunk=chunk, started_ns=started, speculation=drafts
            ):
                shown.append(piece.text)
                if piece.token_id is not None:
                    sampled.append(piece.token_id)
                ended = piece.finish_reason == "stop"
                yield piece
        finally:
            self.messages = [*messages, {"role": "assistant", "content": "".join(shown)}]
            self._cached = (prompt + sampled)[: self._cache.length]
            if ended and sampled[-1] in text.eos:
                sampled.pop()
                ended = False
            # After a stop string the tokens say more than the text that was shown: the text is encoded anew.
            self._said = [] if ended else prompt + sampled
            self._said_text = prompt_text + "".join(shown)

    def _render(self, messages: list[Message]) -> str:
        template = self._model.template
        return "".join(m["content"] + "\n" for m in messages) if template is None else template.render(messages)

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


def _shared(a: list[int], b: list[int]) -> int:
    """The length of the longest common prefix."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
