"""Control tokens that somebody typed are text: `<|im_end|>` in a message ends no turn.

A template writes its own control tokens between messages, and what it renders is one text. So the control tokens that
people typed are hidden before it renders, in letters that nobody can guess. Such a text is encoded by a tokenizer that
is the bundle's except for the names of its control tokens: merges and spaces between scaffold and messages come out as
always, and a text without control tokens is never touched.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

LANGUAGE_MARKS = (">>", "<<"), ("<2", ">")  # around a target's code before a text: Marian's way, and MADLAD's


class Controls:
    """The control tokens of a vocabulary.

    texts: as people may type them, each with whether only a whole word counts. of_answers: those that models write as
    text, such as the ends of thoughts, which stay tokens in answers. normalize: what the tokenizer does to a text
    before it looks its pieces up, where a control token may come of that.
    """

    def __init__(
        self, texts: Mapping[str, bool], of_answers: Collection[str] = (), normalize: Callable[[str], str] | None = None
    ) -> None:
        self.texts = texts
        self._normalize = normalize
        self._in_answers = {text: whole for text, whole in texts.items() if text not in of_answers}
        self._begins = {text[:2] for text in texts}
        self._mark = f"q{os.urandom(12).hex()}v"  # that texts with something hidden in them have

    def typed(self, text: str, *, answer: bool = False) -> bool:
        """True if a control token is in a text, or in the text as the tokenizer normalizes it. answer: whether a model
        wrote it."""
        texts = self._in_answers if answer else self.texts
        return self._within(text, texts) or (self._normalize is not None and self._within(self._normalize(text), texts))

    def _within(self, text: str, texts: Mapping[str, bool]) -> bool:
        return any(begin in text for begin in self._begins) and any(control in text for control in texts)

    def hide(self, text: str, *, answer: bool = False) -> str:
        """Replace the control tokens in a text by other letters."""
        if not self.typed(text, answer=answer):
            return text
        texts = self._in_answers if answer else self.texts
        hidden = _any(texts).sub(lambda found: self._hidden(found[0]), text)
        if hidden == text:  # they come of it when it is normalized
            first = len(text) - len(text.lstrip())
            hidden = text[:first] + self._hidden(text[first]) + text[first + 1 :]
        return hidden

    def _hidden(self, text: str) -> str:
        return f"{self._mark}{text.encode().hex()}z"

    def has_hidden(self, text: str) -> bool:
        """True if a text has hidden control tokens."""
        return self._mark in text

    def show(self, text: str) -> str:
        """Return a text as people read it: hidden control tokens are put back."""
        if self._mark not in text:
            return text
        return re.sub(f"{self._mark}((?:[0-9a-f]{{2}})+)z", lambda found: bytes.fromhex(found[1]).decode(), text)

    @property
    def names(self) -> dict[str, str]:
        """Other names of the control tokens, for a tokenizer in which their texts are plain text."""
        return {text: f"{self._mark}w{i}z" for i, text in enumerate(self.texts)}

    def renamed(self, text: str) -> str:
        """Return a text with the other names of its control tokens, and with hidden ones put back as they were
        typed."""
        names = self.names
        return self.show(_any(self.texts).sub(lambda found: names[found[0]], text))


def _any(texts: Mapping[str, bool]) -> re.Pattern[str]:
    """The leftmost of some texts, of these the longest, as tokenizers find them."""
    longest = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(rf"(?<!\w){re.escape(t)}(?!\w)" if texts[t] else re.escape(t) for t in longest))


def rename(tokenizer: str, names: Mapping[str, str]) -> str:
    """Return the text of a `tokenizer.json` in which tokens have other names, and all else is the same."""
    content: dict[str, Any] = json.loads(tokenizer)
    model = content["model"]
    for token in content["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(piece, piece): i for piece, i in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
    if "unk_token" in model:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    if "merges" in model:
        model["merges"] = [pair for pair in model["merges"] if not _touches(pair, names)]
    content["post_processor"] = None  # which puts tokens around texts that nobody asks for here
    return json.dumps(content, ensure_ascii=False)


def _touches(pair: str | Iterable[str], names: Mapping[str, str]) -> bool:
    """True if a merge has a renamed token as a part or as its result."""
    left, right = pair.split(" ", 1) if isinstance(pair, str) else pair
    return left in names or right in names or left + right in names
