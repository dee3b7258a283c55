"""No run of N tokens occurs twice (NoRepeatNGramLogitsProcessor)."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from edge.runtime.decode.rules.rule import FORBIDDEN, Processor, RuleSettings

NAME = "no-repeat-ngram"
HELP = "forbids every token that would complete an n-gram which the text has already"
TRAITS = {"stage": "scores", "order": 20}


def rule(settings: RuleSettings) -> Processor | None:
    size = settings.option("no_repeat_ngram", settings.bundle.no_repeat_ngram_size)
    return NoRepeatNgrams(size) if size else None


class NoRepeatNgrams:
    def __init__(self, size: int) -> None:
        self._size = size

    def __call__(self, texts: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
        length = texts.shape[1]
        if length < self._size:
            return
        ngrams = sliding_window_view(texts, self._size, axis=1)  # [B, L - n + 1, n]
        begun = texts[:, None, length + 1 - self._size :]  # the n - 1 tokens that a next one would complete
        rows, places = np.nonzero((ngrams[:, :, :-1] == begun).all(axis=2))
        scores[rows, ngrams[rows, places, -1]] = FORBIDDEN
