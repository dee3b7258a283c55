"""Some tokens are never said (SuppressTokensLogitsProcessor)."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from edge.runtime.decode.rules.rule import FORBIDDEN, Processor, RuleSettings

NAME = "suppress"
HELP = "forbids some tokens"
TRAITS = {"stage": "scores", "order": 60}


def rule(settings: RuleSettings) -> Processor | None:
    return Suppress(settings.bundle.suppress) if settings.bundle.suppress else None


class Suppress:
    def __init__(self, tokens: Collection[int]) -> None:
        self._tokens = sorted(tokens)

    def __call__(self, texts: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
        scores[:, self._tokens] = FORBIDDEN
