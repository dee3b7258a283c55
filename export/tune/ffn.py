"""Skipping of feed-forward blocks: those that turn a prompt's stream least are left out of its answer (FFN-SkipLLM,
Jaiswal et al. 2024, arXiv 2404.03865)."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from edge.export.tune.network import Network, Tensors
from edge.export.tune.policy import TrainedPolicy, ratio_of
from edge.export.tune.settings import Settings
from edge.runtime.skip.ffn import candidates, most_redundant

NAME = "ffn"
HELP = "the feed-forward blocks that change a prompt least are left out"
TRAITS = {"takes": "--ratio", "segments": "ffn"}


class FeedForward(TrainedPolicy):
    """Leaves out `ratio` of the blocks of answers. Each prompt decides which of the candidates these are, as in the
    runtime, by the model as it is tuned so far."""

    feed_forward = True

    def __init__(self, layers: int, ratio: float) -> None:
        self._layers, self._ratio = layers, ratio
        blocks = range(1, layers - 1)
        self._count = min(round(ratio * layers), len(blocks))
        self._places = {blocks[block]: i for i, block in enumerate(candidates(len(blocks), self._count))}
        self._answer = self._out = torch.zeros(0)  # [B, S, 1]; [candidates, B]: left out of an answer

    def begin(self, network: Network, tensors: Tensors, draw: np.random.Generator) -> None:
        found = torch.zeros(len(self._places), len(tensors.prompts))
        prompt = tensors.prompt[:, : int(tensors.prompts.max())].float()

        def watch(layer: int, before: torch.Tensor, after: torch.Tensor) -> None:
            if layer in self._places:
                cosines = F.cosine_similarity(before.float(), after.float(), dim=-1)
                found[self._places[layer]] = ((cosines * prompt).sum(1) / prompt.sum(1)).cpu()

        network.watch(tensors, watch)
        out = np.stack([most_redundant(cosines, self._count) for cosines in found.T.numpy()], axis=1)
        self._out = torch.from_numpy(out).float().to(tensors.answer.device)
        self._answer = tensors.answer.float()[..., None]

    def gate(self, layer: int, stream: torch.Tensor) -> torch.Tensor | float:
        place = self._places.get(layer)
        return 1.0 if place is None else 1 - self._answer * self._out[place][:, None, None]

    def skipped(self) -> float:
        return self._count / self._layers

    def skip(self) -> str:
        return f"ffn:{self._ratio:g}"


def make(layers: int, hidden_size: int, settings: Settings) -> FeedForward:
    return FeedForward(layers, ratio_of(settings))
