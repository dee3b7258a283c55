"""Some runs of tokens are never said (NoBadWordsLogitsProcessor)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edge.runtime.decode.rules.rule import FORBIDDEN, Processor, RuleSettings

NAME = "bad-words"
HELP = "forbids every token that would complete one of some runs of tokens"
TRAITS = {"stage": "scores", "order": 30}


def rule(settings: RuleSettings) -> Processor | None:
    return BadWords(settings.bundle.bad_words) if settings.bundle.bad_words else None


class BadWords:
    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        self._words: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []  # of each length: beginnings, last tokens
        for length in sorted({len(word) for word in words}):
            runs = np.array([word for word in words if len(word) == length], np.int64)
            self._words.append((runs[:, :-1], runs[:, -1]))

    def __call__(self, texts: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
        for begun, last in self._words:
            before = begun.shape[1]
            if before <= texts.shape[1]:
                ends = texts[:, None, texts.shape[1] - before :]  # [B, 1, tokens]
                rows, words = np.nonzero((ends == begun).all(axis=2))
                scores[rows, last[words]] = FORBIDDEN
