"""Answers in messages, each with a header that names its channel, as OpenAI's harmony format has them: thoughts are the
messages of one channel, and the answer that of another.

    <|channel|>analysis<|message|>THOUGHTS<|end|><|start|>assistant<|channel|>final<|message|>ANSWER<|return|>
"""

from __future__ import annotations

import json
import re

from edge.errors import BundleError
from edge.runtime.text.thinking import Block
from edge.runtime.text.tokenizer import Text

RECIPIENT = re.compile(r"(?:^|\s)to=(?:functions\.)?(\S+)")  # in a header: what the message calls
PEOPLE = "user", "assistant", "all"  # recipients that are no tools
BETWEEN = "\n\n"  # messages of a kind that follow each other
HEADER, THOUGHTS, WORDS, CALL = range(4)  # parts of an answer


class Channels:
    """Separates an answer's thoughts from the rest of it, as `Thoughts` does, where they are messages of a channel.

    The answer is the message of the final channel. Words of other channels, such as what harmony's commentary says
    before it calls a tool, are part of it. So is a call, as Hermes's models write one: `<tool_call>{"name": ...,
    "arguments": ...}</tool_call>`, whether its recipient stands in front of the channel or after it. An answer that
    begins without a header has no thoughts.

    tokens: how many were pushed that are part of no message that is shown. thought: of these, those of thoughts.
    inside: whether thoughts go on. over: whether the final channel has begun.

    Raises:
        BundleError: the marks are not tokens of the vocabulary.
    """

    def __init__(self, block: Block, text: Text) -> None:
        marks = block.marks
        opening, answering, after = (text.encode(mark) for mark in (marks.open, marks.answer, marks.after))
        ends = [(ids[0], ids[-1]) for ids in (opening, answering) if len(ids) > 2]
        if len(ends) < 2 or ends[0] != ends[1] or len(closing := text.encode(marks.close)) != 1:
            raise BundleError(
                f"The marks of thoughts, {marks.open!r} and {marks.close!r}, are not tokens of the bundle's "
                "vocabulary; export the model again."
            )
        self._channel, self._message = ends[0]
        self._start, self._end = after[0], closing[0]
        self._marks = {i: text.token(i) or "" for i in (*ends[0], self._start, self._end)}
        self._analysis, self._final = (text.decode(ids[1:-1]).strip() for ids in (opening, answering))
        self._special, self._eos = text.special, text.eos
        self.tokens = self.thought = 0
        self.over = block.closed
        self._part = THOUGHTS if block.begun else WORDS if block.closed else HEADER
        self._thinks, self._said = block.begun, False  # there were thoughts, or words
        self._ended = False  # by the last token
        self._begin(named=False)

    def _begin(self, *, named: bool) -> None:
        """Begin a header. named: a mark begins it, and not text alone."""
        self._named, self._role, self._header = named, "", ""

    @property
    def inside(self) -> bool:
        return self._part == THOUGHTS

    def ends(self, token: int) -> bool:
        """True if a token, the last that was pushed, ends the answer. What ends every message ends the answer after the
        final channel's, and not before."""
        return self._ended if token == self._end else token in self._eos

    def push(self, token: int | None, text: str) -> tuple[str | None, str]:
        """Split a token's text, or text that belongs to no token, in two parts: of thoughts, None where the token is
        not one of them, and of the answer."""
        mark = None if token is None else self._marks.get(token)
        over, self._ended = self.over, self.over and token == self._end
        if mark is None:
            thought, said = self._text(text)
            if self._named and token in self._special:
                self._header += " "  # a mark between two words
        else:
            (thought, said), (more, shown) = self._text(text.removesuffix(mark)), self._marked(token)
            thought, said = more if thought is None else thought + (more or ""), said + shown
        if token is not None and not over:
            part_of_block = mark is not None or self._part in (HEADER, THOUGHTS)
            self.tokens += part_of_block
            self.thought += mark is None and self._part == THOUGHTS
            if part_of_block and self._thinks:
                thought = thought or ""
        return thought, said

    def flush(self) -> tuple[str | None, str]:
        """Return the text that was held back, after the last token: of thoughts, and of the answer."""
        if self._part == CALL:
            return self._closed()
        return None, "" if self._named or self._part != HEADER else self._header

    def _text(self, text: str) -> tuple[str | None, str]:
        """Thoughts and words of a text without marks."""
        if self._part == THOUGHTS:
            return text, ""
        if self._part != HEADER:
            self._said = self._said or bool(text)
            return None, text
        self._header += text
        begun = self._header.lstrip()
        if self._named or "to=".startswith(begun[:3]):
            return None, ""
        self._part, self.over = WORDS, True  # without a header
        return None, self._header

    def _marked(self, token: int | None) -> tuple[str | None, str]:
        """Thoughts and words that a mark adds."""
        if token == self._message:
            return self._opened() if self._part == HEADER else (None, "")
        found = self._closed()
        if token == self._channel:
            self._named, self._role, self._header = True, self._header, ""
        else:
            self._begin(named=token == self._start)
        return found

    def _opened(self) -> tuple[str | None, str]:
        """Begin the message whose header is complete."""
        name = next(iter(self._header.split()), "")
        called = RECIPIENT.search(f"{self._role} {self._header}")
        if called is not None and called[1] not in PEOPLE:
            self._part = CALL
            line = "\n" if self._said else ""
            return None, f'{line}<tool_call>{{"name": {json.dumps(called[1])}, "arguments": '
        if name == self._analysis:
            between = BETWEEN if self._thinks else ""
            self._part, self._thinks = THOUGHTS, True
            return between, ""
        self._part, self.over = WORDS, self.over or name in (self._final, "")
        return None, BETWEEN if self._said else ""

    def _closed(self) -> tuple[str | None, str]:
        """End the message under way, where there is one."""
        part, self._part = self._part, HEADER
        if part != HEADER:
            self._begin(named=False)
        return None, "}</tool_call>" if part == CALL else ""
