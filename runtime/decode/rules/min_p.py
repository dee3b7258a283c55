"""Tokens are drawn from those that are at least a share as likely as the likeliest (Nguyen et al. 2024;
MinPLogitsWarper)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge.runtime.decode.rules.rule import RuleSettings, Threshold

NAME = "min-p"
HELP = "leaves out tokens less likely than p times the likeliest one"
TRAITS = {"stage": "weights", "order": 20}


def rule(settings: RuleSettings) -> Threshold | None:
    share = settings.option("min_p", 0.0)
    return MinP(share) if share else None


class MinP:
    def __init__(self, share: float) -> None:
        self._least = share

    def __call__(self, weights: NDArray[np.float32]) -> float:
        return self._least  # of the likeliest token's weight, which is 1

    def decides(self, best: NDArray[np.float32]) -> bool:
        return bool(best[-1] < self._least)
