"""Tokens are drawn from the smallest set of likeliest ones that holds a share of the probability: the nucleus
(Holtzman et al. 2020; TopPLogitsWarper)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge.runtime.decode.rules.rule import RuleSettings, Threshold
from edge.runtime.largest import largest

NAME = "top-p"
HELP = "draws from the smallest set of likeliest tokens whose probabilities reach p"
TRAITS = {"stage": "weights", "order": 10}

NUCLEUS = 256  # the first guess of how many of the largest weights sum up to top_p


def rule(settings: RuleSettings) -> Threshold | None:
    share = settings.option("top_p", 1.0)
    return TopP(share) if share < 1 else None


class TopP:
    """The smallest weight in the nucleus: tokens that are as likely stay, too."""

    def __init__(self, share: float) -> None:
        self._share = share

    def __call__(self, weights: NDArray[np.float32]) -> float:
        size = weights.shape[0]
        wanted = self._share * float(weights.sum(dtype=np.float64))
        count = min(NUCLEUS, size)
        while True:  # sorts the `count` largest only; a vocabulary's nucleus is rarely more than that
            head = largest(weights, count)[0]
            reached = np.cumsum(head, dtype=np.float64)
            if reached[-1] >= wanted or count == size:
                return float(head[min(int(np.searchsorted(reached, wanted)), count - 1)])
            count = min(8 * count, size)

    def decides(self, best: NDArray[np.float32]) -> bool:
        return False  # the sum of all weights does
