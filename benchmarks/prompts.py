"""Prompts of exact lengths from real English text, a different piece each time, so that no prefix cache helps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

QUESTION = "What is the capital of France? Answer in one short sentence."


class Prompts:
    """Token ids of Python's own reference documentation, which every Python brings along."""

    def __init__(self, tokenizer: Path) -> None:
        from pydoc_data.topics import topics

        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._texts = self._endless([text for text in topics.values() if len(text) > 2000])
        self._ids: list[int] = []

    @staticmethod
    def _endless(texts: list[str]) -> Iterator[str]:
        number = 0
        while True:
            for text in texts:
                yield f"{number} {text}"
                number += 1

    def take(self, length: int) -> list[int]:
        """The next `length` tokens."""
        while len(self._ids) < length:
            self._ids += self._tokenizer.encode(next(self._texts), add_special_tokens=False).ids
        taken, self._ids = self._ids[:length], self._ids[length:]
        return taken

    def text(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids))
