"""Unified skipping: the same evenly spread layers are left out in every step (Liu et al. 2024, arXiv 2404.06954)."""

from __future__ import annotations

import torch

from edge.export.tune.policy import TrainedPolicy, ratio_of
from edge.export.tune.settings import Settings
from edge.runtime.skip.unified import spread

NAME = "unified"
HELP = "the same evenly spread layers are left out in every step"
TRAITS = {"takes": "--ratio"}


class Unified(TrainedPolicy):
    """Leaves out `ratio` of the layers for all tokens, prompts' too."""

    def __init__(self, layers: int, ratio: float) -> None:
        count = min(round(ratio * layers), layers - 2)
        self._ratio, self._layers = ratio, layers
        self.left_out = frozenset(1 + place for place in spread(count, layers - 2))

    def gate(self, layer: int, stream: torch.Tensor) -> float:
        return 0.0 if layer in self.left_out else 1.0

    def skipped(self) -> float:
        return len(self.left_out) / self._layers

    def skip(self) -> str:
        return f"unified:{self._ratio:g}"


def make(layers: int, hidden_size: int, settings: Settings) -> Unified:
    return Unified(layers, ratio_of(settings))
