"""FiRST: routers read the prompt and decide, once for the answer, which layers it needs (Jain et al. 2024, arXiv
2410.12513).

A router is a logit of the residual stream that its layer is about to read, divided by its root mean square; a layer is
needed with the mean of its probabilities over the prompt, and left out below one half. The decision is hard, its
gradient that of the probability (straight through), and a penalty holds the share of layers that are left out at its
target. While training, a random shift that all routers of an answer share makes it leave out more or fewer, so that one
model serves several speeds, and a random shift for each router tries sets that would not have been chosen. After the
last step routers are fitted to what answers turn out to need (`edge.export.tune.needs`), which replaces what they had
learnt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from edge.export.facts.progress import Progress
from edge.export.tune.depth import least_missed
from edge.export.tune.needs import guess, measure
from edge.export.tune.network import Network, Tensors
from edge.export.tune.policy import TrainedPolicy, ratio_of
from edge.export.tune.settings import Settings
from edge.runtime.skip.first import EPSILON

NAME = "first"
HELP = "routers read the prompt and choose the layers of its answer"
TRAITS = {"takes": "--ratio", "routers": True}

BEYOND = 1.6  # times as many units as the target leaves out have a router, unless it is said how many
PENALTY = 60.0  # of a run that asks for no other
APART = 0.4  # between the first biases of two routers, in the order in which their layers are missed
SHARED = 0.8  # the widest shift that all routers of an answer share: two units more or fewer at first
SINGLE = 0.3  # the scale of each router's own shift
SPREAD = 0.3  # of fitted logits: a prompt's tokens differ more, and the mean of their probabilities decides
NOTES = "missed.json"


class First(TrainedPolicy):
    """Routers for the units that answers miss least; all others have an infinite bias, and always run."""

    def __init__(self, layers: int, hidden_size: int, ratio: float, settings: Settings) -> None:
        middle = range(1, layers - 1)
        self.units = [tuple(middle[at : at + settings.unit]) for at in range(0, len(middle), settings.unit)]
        self._layers, self._unit = layers, settings.unit
        self._penalty = PENALTY if settings.penalty is None else settings.penalty
        self._wanted = min(max(1, round(ratio * layers / settings.unit)), len(self.units))
        asked = settings.candidates or round(BEYOND * self._wanted) + 1
        self._count = min(max(asked, self._wanted), len(self.units))
        self._per_weight = hidden_size**-0.5  # so that a step of the optimizer moves a logit by little
        self.weights = torch.nn.Parameter(torch.zeros(len(self.units), hidden_size))
        self.bias = torch.nn.Parameter(torch.full((len(self.units),), torch.inf))
        self._places = {unit[0]: i for i, unit in enumerate(self.units)}
        self._unit_of = {layer: i for i, unit in enumerate(self.units) for layer in unit}
        self._routed: frozenset[int] = frozenset()

    def prepare(self, network: Network, batches: Sequence[Tensors], folder: Path, progress: Progress) -> None:
        order = least_missed(network, self.units, self._count, batches, folder / NOTES, progress)
        with torch.no_grad():
            for rank, unit in enumerate(order):
                self.bias[unit] = APART * (rank - self._wanted + 0.5)

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        return {"weights": self.weights, "bias": self.bias}

    def begin(self, network: Network, tensors: Tensors, draw: np.random.Generator) -> None:
        size = len(tensors.prompts)
        shift = draw.uniform(-SHARED, SHARED, (size, 1)) + draw.logistic(0, SINGLE, (size, len(self.units)))
        self._shift = torch.from_numpy(shift).float().to(tensors.answer.device)  # [B, units]
        self._prompt, self._answer = tensors.prompt.float(), tensors.answer.float()[..., None]
        self._routed = frozenset(torch.isfinite(self.bias).nonzero().flatten().tolist())
        self._gates: dict[int, torch.Tensor] = {}  # [B] of each unit
        self._needed: list[torch.Tensor] = []

    def gate(self, layer: int, stream: torch.Tensor) -> torch.Tensor | float:
        unit = self._unit_of.get(layer)
        if unit is None or unit not in self._routed:
            return 1.0
        if layer in self._places:
            self._gates[unit] = self._decide(unit, stream.detach().float())
        return 1 - self._answer * (1 - self._gates[unit][:, None, None])

    def _decide(self, unit: int, stream: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(stream.square().mean(-1, keepdim=True) + EPSILON)
        logits = (stream * scale * self.weights[unit]).sum(-1) * self._per_weight + self.bias[unit]  # [B, S]
        mean = (torch.sigmoid(logits) * self._prompt).sum(1) / self._prompt.sum(1)
        self._needed.append(mean)
        shifted = torch.sigmoid(torch.logit(mean, eps=1e-6) + self._shift[:, unit])
        hard = (shifted >= 0.5).float()
        return hard + shifted - shifted.detach()

    def penalty(self) -> torch.Tensor:
        """Return the penalty on the share that the routers leave out without any shift."""
        needed = torch.stack(self._needed)  # [routers, B]
        kept = (needed >= 0.5).float() + needed - needed.detach()
        out = (1 - kept).sum(0) * self._unit / self._layers
        return self._penalty * (out.mean() - self._wanted * self._unit / self._layers).square()

    def skipped(self) -> float:
        gates = torch.stack(list(self._gates.values())).detach()
        return float((1 - gates).sum(0).mean()) * self._unit / self._layers

    def finish(self, network: Network, batches: Iterable[Tensors]) -> dict[str, float]:
        """Fit the routers to what answers turn out to need: units that are cheap to lose get low logits, and as many as
        the target leaves out are below zero in the mean of all answers."""
        routed = torch.isfinite(self.bias).nonzero().flatten().tolist()
        if not self._wanted < len(routed):
            return {}
        needs = measure(network, [self.units[i] for i in routed], self._wanted, batches)
        guessed = guess(needs)
        costs = np.sort(guessed.costs(needs.seen), axis=None)
        out = len(needs.costs) * self._wanted
        level = costs[out - 1 : out + 1].mean()
        scale = SPREAD / max(float(costs.std()), 1e-9)
        with torch.no_grad():
            weights = torch.from_numpy(scale / self._per_weight * guessed.weights)
            self.weights[routed] = weights.to(self.weights)
            self.bias[routed] = torch.from_numpy(scale * (guessed.bias - level)).to(self.bias)
        return {"explained": guessed.explained}

    def routers(self) -> NDArray[np.float32]:
        rows = torch.cat([self.weights * self._per_weight, self.bias[:, None]], dim=1).detach().cpu().numpy()
        return np.ascontiguousarray(rows, np.float32)

    def skip(self) -> str:
        return "first"


def make(layers: int, hidden_size: int, settings: Settings) -> First:
    return First(layers, hidden_size, ratio_of(settings), settings)
