"""Tokens that occurred become less likely (Keskar et al. 2019, section 4.1; RepetitionPenaltyLogitsProcessor)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge.runtime.decode.rules.rule import LARGEST, SMALLEST, Processor, RuleSettings

NAME = "repetition-penalty"
HELP = "divides positive logits of tokens that occurred, and multiplies negative ones"
TRAITS = {"stage": "scores", "order": 10}


def rule(settings: RuleSettings) -> Processor | None:
    penalty = settings.option("repetition_penalty", settings.bundle.repetition_penalty)
    return None if penalty == 1 else RepetitionPenalty(penalty)


class RepetitionPenalty:
    def __init__(self, penalty: float) -> None:
        self._penalty = np.float32(min(max(penalty, SMALLEST), LARGEST))

    def __call__(self, texts: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
        said = np.take_along_axis(scores, texts, axis=1)  # [B, L]
        with np.errstate(over="ignore"):
            scaled = np.where(said < 0, said * self._penalty, said / self._penalty)
        np.clip(scaled, -LARGEST, LARGEST, out=scaled, where=np.isfinite(said))  # what was finite stays so
        np.put_along_axis(scores, texts, scaled, axis=1)
