"""Logits are divided by the temperature before a token is drawn (TemperatureLogitsWarper)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge.runtime.decode.rules.rule import LARGEST, SMALLEST, RuleSettings

NAME = "temperature"
HELP = "makes draws more even above 1, and less so below"
TRAITS = {"stage": "temperature", "order": 10}


def rule(settings: RuleSettings) -> Temperature:
    return Temperature(settings.option("temperature", 0.0))


class Temperature:
    """exp((logit - largest) / temperature): probabilities up to a factor."""

    def __init__(self, temperature: float) -> None:
        self.divisor = min(max(temperature, SMALLEST), LARGEST)  # -inf over infinity would be no number

    def __call__(self, logits: NDArray[np.float32], largest: float) -> NDArray[np.float32]:
        with np.errstate(over="ignore"):  # a tiny temperature sends all but the largest to exp(-inf) = 0, as it should
            weights: NDArray[np.float32] = (logits - np.float32(largest)) / np.float32(self.divisor)
        np.exp(weights, out=weights)
        return weights
