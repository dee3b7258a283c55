"""Prompts of exact lengths from real English text, a different piece each time, so that no prefix cache helps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

QUESTION = "What is the capital of France? Answer in one short sentence."


class Prompts:
    """Token ids of a text file, cut at its empty lines, or of Python's own reference documentation, which every Python
    brings along."""

    def __init__(self, tokenizer: Path, file: Path | None = None) -> None:
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        if file is None:
            from pydoc_data.topics import topics

            self._texts = self._endless([text for text in topics.values() if len(text) > 2000])
        else:
            paragraphs = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
            self._texts = itertools.cycle([f"{text}\n" for text in paragraphs if len(text) > 200])
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
