"""Layer needs of answers: measured for each layer, and predicted from the prompt. Routers choose by them.

A router that learns through its hard decisions sees one set of layers for each answer, and hardly moves from its start.
So routers are fitted once the adapters are done. Answers are predicted without several sets of units. The loss of an
answer without each unit is estimated from the losses of the sets by least squares. Ridge regression predicts it from
the router's view of the prompt; the ridge is chosen on answers that were held out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from edge.export.tune.depth import without
from edge.export.tune.gates import Gate
from edge.export.tune.network import Network, Tensors, divergence
from edge.runtime.skip.first import EPSILON

SETS = 2  # for each unit: sets that are left out of an answer
DRAWS = 64  # of such sets, of which those are taken that tell units apart best
FOLDS = 5
RIDGES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # times the mean square of what is seen, from its middle
MIN_ANSWERS = 60  # answers: fewer may explain each other by chance
MIN_EXPLAINED = 0.03  # of the variance: less is explained by chance


@dataclass(frozen=True)
class Needs:
    """Needs of N answers for R units.

    costs: nats a token [N, R] that an answer loses without a unit, relative to the mean unit. seen: [N, R, H], the mean
    over the prompt of the residual stream that the unit is about to read, divided by its root mean square.
    """

    costs: NDArray[np.float64]
    seen: NDArray[np.float64]


@dataclass(frozen=True)
class Guess:
    """A linear guess of `Needs.costs`: weights [R, H] of what is seen, and a bias [R].

    explained: the share of the costs' variance that it explains of answers it was not fitted to; 0 where weights are 0.
    """

    weights: NDArray[np.float64]
    bias: NDArray[np.float64]
    explained: float

    def costs(self, seen: NDArray[np.float64]) -> NDArray[np.float64]:
        """Predict the costs [N, R] from `seen` [N, R, H]."""
        guessed: NDArray[np.float64] = np.einsum("nrh,rh->nr", seen, self.weights) + self.bias
        return guessed


def measure(network: Network, units: Sequence[Sequence[int]], out: int, batches: Iterable[Tensors]) -> Needs:
    """Measure the loss of the answers in `batches` without each of R units, if `out` of them are left out, 0 < out < R.
    It is relative to the network's predictions with all layers.

    units: the layers of each.
    """
    sets = _sets(len(units), out)
    effects = np.linalg.pinv(sets - sets.mean(0))  # [R, sets]
    costs, seen = list[NDArray[np.float64]](), list[NDArray[np.float64]]()
    with torch.no_grad():
        for batch in batches:
            streams = dict[int, torch.Tensor]()
            whole = network.logits(batch, _watching(units, batch, streams))
            lost = []
            for left in sets:
                layers = {layer for unit in np.flatnonzero(left).tolist() for layer in units[unit]}
                lost.append(_by_answer(whole, network.logits(batch, without(layers, batch)), batch))
            losses = torch.stack(lost).double().numpy()  # [sets, B]
            costs.append((effects @ (losses - losses.mean(0))).T)
            seen.append(torch.stack([streams[unit] for unit in range(len(units))], dim=1).double().numpy())
    return Needs(np.concatenate(costs), np.concatenate(seen))


def _sets(units: int, out: int) -> NDArray[np.float64]:
    """Return the sets of units to leave out [sets, R]: 1 where a set leaves a unit out. All sets if they are few, else
    those of the draw whose losses determine the cost of each unit best."""
    count = SETS * units
    if math.comb(units, out) <= count:
        every = list(itertools.combinations(range(units), out))
        return np.array([[float(unit in left) for unit in range(units)] for left in every])
    draw = np.random.default_rng(0)
    drawn = [np.array([draw.permutation(units) < out for _ in range(count)], np.float64) for _ in range(DRAWS)]

    def unsure(sets: NDArray[np.float64]) -> float:
        spread = np.linalg.svd(sets - sets.mean(0), compute_uv=False)[: units - 1]  # all sets are of one size
        return math.inf if spread[-1] < 1e-9 else float(np.sum(1 / spread**2))

    return min(drawn, key=unsure)


def _watching(units: Sequence[Sequence[int]], batch: Tensors, streams: dict[int, torch.Tensor]) -> Gate:
    """Return a gate that leaves nothing out and stores each unit's view of the prompts, [B, H], in `streams`."""
    prompt = batch.prompt.float()[..., None]
    firsts = {layers[0]: unit for unit, layers in enumerate(units)}

    def gate(layer: int, stream: torch.Tensor) -> float:
        if layer in firsts:
            x = stream.float()
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON)
            streams[firsts[layer]] = ((x * prompt).sum(1) / prompt.sum(1)).cpu()
        return 1.0

    return gate


def _by_answer(whole: torch.Tensor, part: torch.Tensor, batch: Tensors) -> torch.Tensor:
    """The divergence of each answer's predictions [B], in nats a token."""
    counts = batch.answer.sum(1).tolist()
    return torch.stack([divergence(*pair) for pair in zip(whole.split(counts), part.split(counts), strict=True)]).cpu()


def guess(needs: Needs) -> Guess:
    """The guess with the ridge that explains most of answers held back; the mean of all answers where none explains
    more than chance does."""
    count = len(needs.costs)
    fold = np.random.default_rng(0).permutation(count) % min(FOLDS, count)
    best = Guess(np.zeros(needs.seen.shape[1:]), needs.costs.mean(0), 0.0)
    for ridge in RIDGES if count >= MIN_ANSWERS else ():
        wrong = rest = 0.0
        for left in range(fold.max() + 1):
            known, other = fold != left, fold == left
            fitted = _fitted(Needs(needs.costs[known], needs.seen[known]), ridge)
            wrong += float(np.square(fitted.costs(needs.seen[other]) - needs.costs[other]).sum())
            rest += float(np.square(needs.costs[known].mean(0) - needs.costs[other]).sum())
        if rest and 1 - wrong / rest > max(MIN_EXPLAINED, best.explained):
            best = _fitted(needs, ridge, 1 - wrong / rest)
    return best


def _fitted(needs: Needs, ridge: float, explained: float = 0.0) -> Guess:
    """Ridge regression in its dual form, as answers are fewer than dimensions."""
    weights = np.empty(needs.seen.shape[1:])
    middle, mean = needs.seen.mean(0), needs.costs.mean(0)
    for unit in range(len(weights)):
        seen = needs.seen[:, unit] - middle[unit]
        products = seen @ seen.T
        products[np.diag_indices_from(products)] += ridge * max(np.trace(products) / len(products), 1e-12)
        weights[unit] = seen.T @ np.linalg.solve(products, needs.costs[:, unit] - mean[unit])
    return Guess(weights, mean - np.einsum("rh,rh->r", middle, weights), explained)
