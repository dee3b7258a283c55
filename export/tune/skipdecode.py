"""SkipDecode: answers are trained at random places of a budget that falls (Del Corro et al. 2023, arXiv 2307.02628)."""

from __future__ import annotations

import numpy as np
import torch

from edge.export.tune.network import Network, Tensors
from edge.export.tune.policy import TrainedPolicy, span_of
from edge.export.tune.settings import Settings
from edge.runtime.skip.skipdecode import HORIZON, WARM, level_ends

NAME = "skipdecode"
HELP = "fewer layers run the longer an answer is"
TRAITS = {"takes": "--layers"}


class SkipDecode(TrainedPolicy):
    """The layers of an answer's token fall from the maximum to the minimum of `span` over HORIZON tokens, first and
    last layer counted. A training answer is shorter, so it begins at a random place of the fall: its tokens' layers
    stay among those of the tokens before them.
    """

    def __init__(self, layers: int, span: tuple[int, int]) -> None:
        self._layers, (self._minimum, self._maximum) = layers, span
        warm = max(1, self._minimum // WARM)
        bypassed = list(range(warm, layers - 1))  # in the order that they are dropped
        never = min(layers - self._maximum, len(bypassed))
        self._never = frozenset(bypassed[:never])
        falling = bypassed[never : layers - self._minimum]
        self._ends = np.array(level_ends(len(falling)))
        self._falling = {layer: i for i, layer in enumerate(falling)}
        self._dropped = torch.zeros(0)  # [B, S]: layers that have fallen away for a token
        self._answer = torch.zeros(0, dtype=torch.bool)

    def begin(self, network: Network, tensors: Tensors, draw: np.random.Generator) -> None:
        size, width = tensors.tokens.shape
        starts = draw.integers(0, HORIZON, size) - tensors.prompts  # how many tokens ago each answer began, or will
        done = np.clip(starts[:, None] + np.arange(width), 0, HORIZON - 1)
        dropped = self._ends[done * len(self._ends) // HORIZON]
        self._answer = tensors.answer
        self._dropped = torch.from_numpy(dropped).to(tensors.answer.device) * tensors.answer

    def gate(self, layer: int, stream: torch.Tensor) -> torch.Tensor | float:
        if layer in self._never:
            return 0.0
        place = self._falling.get(layer)
        if place is None:
            return 1.0
        return (self._dropped <= place).float()[..., None]

    def skipped(self) -> float:
        answered = self._dropped[self._answer].float()
        return (float(answered.mean()) + len(self._never)) / self._layers

    def skip(self) -> str:
        return f"skipdecode:{self._minimum}-{self._maximum}"


def make(layers: int, hidden_size: int, settings: Settings) -> SkipDecode:
    return SkipDecode(layers, span_of(settings, layers))
