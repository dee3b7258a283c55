"""Tokens are drawn from the k likeliest (Fan et al. 2018; TopKLogitsWarper)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge.runtime.decode.rules.rule import Filter, RuleSettings
from edge.runtime.largest import largest

NAME = "top-k"
HELP = "draws from the k likeliest tokens"
# Before the temperature, which changes no token's rank: so few weights are made.
TRAITS = {"stage": "logits", "order": 10}


def rule(settings: RuleSettings) -> Filter | None:
    count = settings.option("top_k", 0)
    return TopK(count) if count else None


class TopK:
    """Tokens that are as likely as the last of the k stay, too."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __call__(self, logits: NDArray[np.float32]) -> NDArray[np.intp] | None:
        count = self._count
        if count >= logits.shape[0]:
            return None
        best, places = largest(logits, count + 1)
        if best[count] == best[count - 1]:
            return np.flatnonzero(logits >= best[count - 1])
        return np.sort(places[:count])

    def decides(self, best: NDArray[np.float32]) -> bool:
        return self._count < len(best) and bool(best[-1] < best[self._count - 1])
