"""The thoughts of an answer: separated from the rest as tokens come, and closed after a maximum number."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from edge.runtime.decode.channels import Channels
from edge.runtime.decode.sampling import Sampler
from edge.runtime.text.thinking import Block
from edge.runtime.text.tokenizer import Text, overlap

THINK_TOKENS = 2048  # of thoughts, where nobody says how many, nor how long an answer may be
CLOSING = 16  # tokens at most of the closing mark, and of what stands around it


class Thoughts:
    """Separates an answer's thoughts from the rest of it. They come first, between the model's marks, which are part of
    neither; whitespace around them is left out. Answers without thoughts keep every character.

    tokens: how many were pushed that belong to the block, marks included. inside: whether thoughts go on.
    """

    def __init__(self, block: Block, text: Text) -> None:
        marks = block.marks
        self._open, self._close = marks.open, marks.close
        self._marks = {  # that have no text of their own
            ids[0]: mark
            for mark in (marks.open, marks.close)
            if len(ids := text.encode(mark)) == 1 and ids[0] in text.special
        }
        self._eos, self._before = text.eos, 0 if block.begun else 1  # tokens that are no thoughts: the opening mark
        self.inside = block.begun
        self.over = False  # the answer's own words have begun, or can begin
        self.tokens = 0
        self._shown = False  # something of the part that comes was given out
        self._held = ""

    @property
    def thought(self) -> int:
        """Tokens of thoughts, without marks."""
        return max(0, self.tokens - self._before)

    def ends(self, token: int) -> bool:
        """True if a token, the last that was pushed, ends the answer."""
        return token in self._eos

    def push(self, token: int | None, text: str) -> tuple[str | None, str]:
        """Split a token's text, or text that belongs to no token, in two parts: of thoughts, None where the token is
        not one of them, and of the answer."""
        text = self._marks.get(token, text) if token is not None else text
        if self.over and self._shown:
            return None, text
        self._held += text
        thought = None
        if not self.inside and not self.over:
            begun = self._held.lstrip()
            if begun.startswith(self._open):
                self.inside, self._held = True, begun[len(self._open) :]
            elif self._open.startswith(begun):
                return None, ""
            else:
                self.over = self._shown = True
                return None, self._taken(len(self._held))
        if self.inside:
            self.tokens += 1
            thought = self._thought()
        return thought, "" if self.inside else self._said()

    def flush(self) -> tuple[str | None, str]:
        """Return the text that was held back, after the last token: of thoughts, and of the answer."""
        if self.inside:
            return self._taken(len(self._held.rstrip())) or None, ""
        return None, "" if self.over else self._taken(len(self._held))

    def _thought(self) -> str:
        """The thoughts that are certain to be some, up to the closing mark."""
        if not self._shown:
            self._held = self._held.lstrip()
        at = self._held.find(self._close)
        if at < 0:
            certain = len(self._held) - overlap(self._held, self._close)
            thought = self._taken(len(self._held[:certain].rstrip()))
            self._shown = self._shown or bool(thought)
            return thought
        thought = self._taken(at).rstrip()
        self._held = self._held[len(self._close) :]
        self.inside, self.over, self._shown = False, True, False
        return thought

    def _said(self) -> str:
        """The first words after the thoughts, as soon as there are some."""
        self._held = self._held.lstrip()
        self._shown = bool(self._held)
        return self._taken(len(self._held))

    def _taken(self, count: int) -> str:
        taken, self._held = self._held[:count], self._held[count:]
        return taken


def parted(block: Block, text: Text) -> Thoughts | Channels:
    """What separates the thoughts of one answer from the rest of it."""
    return Channels(block, text) if block.marks.answer else Thoughts(block, text)


class Closing:
    """A sampler for answers whose thoughts have at most `limit` tokens. After that it gives the closing mark instead of
    the model's choice, and the model answers."""

    def __init__(self, sampler: Sampler, block: Block, text: Text, limit: int) -> None:
        self._sampler, self._limit, self._text = sampler, limit, text
        self._thoughts, self._detokenizer = parted(block, text), text.detokenizer()
        self._marks = block.marks
        self._last = ""
        self._forced = deque[int]()

    def __call__(self, logits: NDArray[np.float32]) -> int:
        thoughts = self._thoughts
        if thoughts.over:
            return self._forced.popleft() if self._forced else self._sampler(logits)
        if thoughts.inside and not self._forced and thoughts.thought >= self._limit:
            line = "" if self._last.endswith("\n") or self._marks.answer else "\n"
            self._forced.extend(self._text.encode(f"{line}{self._marks.close}{self._marks.after}"))
        token = self._forced.popleft() if self._forced else self._sampler(logits)
        self._last = self._detokenizer.push(token)
        thoughts.push(token, self._last)
        return token
