"""A text has a minimum of tokens (MinLengthLogitsProcessor)."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from edge.runtime.decode.rules.rule import FORBIDDEN, Processor, RuleSettings

NAME = "min-length"
HELP = "forbids the end tokens before a text has a minimum of tokens"
TRAITS = {"stage": "scores", "order": 40}


def rule(settings: RuleSettings) -> Processor | None:
    tokens = settings.option("min_tokens", -1)  # without the first ones, which the bundle's setting counts
    length = settings.bundle.min_length if tokens < 0 else settings.begin + tokens
    return MinLength(length, settings.ends) if length > settings.begin else None


class MinLength:
    """length: with the decoder's first tokens."""

    def __init__(self, length: int, ends: Collection[int]) -> None:
        self._length = length
        self._ends = sorted(ends)

    def __call__(self, texts: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
        if texts.shape[1] < self._length:
            scores[:, self._ends] = FORBIDDEN
