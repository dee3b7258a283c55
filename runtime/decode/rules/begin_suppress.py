"""Some tokens are never the first of what is generated (SuppressTokensAtBeginLogitsProcessor)."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from edge.runtime.decode.rules.rule import FORBIDDEN, Processor, RuleSettings

NAME = "begin-suppress"
HELP = "forbids some tokens as the first one that is generated"
TRAITS = {"stage": "scores", "order": 70}


def rule(settings: RuleSettings) -> Processor | None:
    tokens = settings.bundle.begin_suppress
    return BeginSuppress(tokens, settings.begin) if tokens else None


class BeginSuppress:
    """begin: how many tokens come before."""

    def __init__(self, tokens: Collection[int], begin: int) -> None:
        self._tokens = sorted(tokens)
        self._begin = begin

    def __call__(self, texts: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
        if texts.shape[1] == self._begin:
            scores[:, self._tokens] = FORBIDDEN
