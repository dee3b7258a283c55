"""Experts in numpy, float32. T is the number of tokens, H the hidden size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge.export.facts.experts import DOWN, EXPERT_PROJECTIONS, GATE, UP, Clamped, Experts

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Routed:
    """The experts of some tokens. count: of all; chosen: each token's, and shares: their weights, both [T, k]. compute:
    makes of an expert's number, some of the tokens and its matrices by their names in it what the last of these reads
    [tokens, wide], and gives [tokens, H]."""

    count: int
    chosen: NDArray[np.int64]
    shares: Floats
    compute: Callable[[int, NDArray[np.int64], Mapping[str, Floats]], tuple[Floats, Floats]]


def mixture(
    sizes: Experts,
    x: Floats,
    read: Callable[[str], Floats],
    activation: Callable[[Floats], Floats],
    observe: Callable[[Routed], None] = lambda routed: None,
) -> Floats:
    """What a block of experts makes of rows [T, H]. read: gives a tensor of the block by its name in it."""

    def product(name: str, rows: Floats, weight: Floats) -> Floats:
        made = rows @ weight.T
        return made + read(f"{name}.bias") if sizes.biased else made

    def compute(expert: int, rows: NDArray[np.int64], weights: Mapping[str, Floats]) -> tuple[Floats, Floats]:
        gate, up = (product(f"experts.{expert}.{name}", x[rows], weights[name]) for name in (GATE, UP))
        inner = activation(gate) * up if sizes.clamped is None else _clamped(sizes.clamped, gate, up)
        return inner, product(f"experts.{expert}.{DOWN}", inner, weights[DOWN])

    scores = product(sizes.router, x, read(f"{sizes.router}.weight"))
    chosen, shares = routed(sizes, scores, read)
    observe(Routed(sizes.count, chosen, shares, compute))
    made = np.zeros_like(x)
    for expert in np.unique(chosen):
        rows, places = np.nonzero(chosen == expert)
        weights = {name: read(f"experts.{expert}.{name}.weight") for name in EXPERT_PROJECTIONS}
        made[rows] += compute(int(expert), rows, weights)[1] * shares[rows, places, None]
    return made * np.float32(sizes.scale)


def _clamped(how: Clamped, gate: Floats, up: Floats) -> Floats:
    gate = np.minimum(gate, np.float32(how.limit))
    up = np.clip(up, -np.float32(how.limit), np.float32(how.limit))
    return np.asarray(gate / (1 + np.exp(-np.float32(how.alpha) * gate)) * (up + 1), np.float32)


def routed(sizes: Experts, scores: Floats, read: Callable[[str], Floats]) -> tuple[NDArray[np.int64], Floats]:
    """The experts of each token, and their weights, both [T, chosen], of its scores [T, count]."""
    if sizes.sigmoids:
        weights = np.asarray(1 / (1 + np.exp(-scores)), np.float32)
    else:
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
    by = weights if sizes.bias is None else weights + read(sizes.bias)
    chosen = np.argsort(-by, -1, kind="stable")[:, : sizes.chosen].astype(np.int64)
    shares = np.take_along_axis(weights, chosen, -1)
    if sizes.normalized:
        shares /= shares.sum(-1, keepdims=True)
    return chosen, shares
