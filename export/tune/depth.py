"""Which layers a model misses least, before it is trained: where routers begin."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edge.export.quantize.base import Progress
from edge.export.tune.gates import Gate
from edge.export.tune.network import Network, Tensors, divergence

SPARE = 2  # units more than are still wanted that stay in the search after a round


def least_missed(
    network: Network, units: Sequence[Sequence[int]], count: int, batches: Sequence[Tensors], progress: Progress
) -> list[int]:
    """The indices of `count` units of layers in the order in which answers miss them least, found greedily: each is the
    one whose loss, together with those before it, moves the model's predictions least (KL divergence). Those that would
    move them most are not looked at again."""
    chosen: list[int] = []
    candidates = list(range(len(units)))
    total = len(units) + sum(min(count - i + SPARE, len(units) - i) for i in range(1, count))
    done = 0
    with torch.no_grad():
        teachers = [network.logits(batch, None, adapted=False) for batch in batches]
        for _ in range(count):
            costs = {}
            for unit in candidates:
                progress(done, total, "finding the layers that are missed least")
                out = {layer for i in (*chosen, unit) for layer in units[i]}
                costs[unit] = sum(
                    float(divergence(teacher, network.logits(batch, _without(out, batch), adapted=False)))
                    for batch, teacher in zip(batches, teachers, strict=True)
                )
                done += 1
            ranked = sorted(costs, key=lambda unit: costs[unit])
            chosen.append(ranked[0])
            candidates = ranked[1 : 1 + count - len(chosen) + SPARE]
    return chosen


def _without(out: set[int], batch: Tensors) -> Gate:
    kept = (~batch.answer).float()[..., None]
    return lambda layer, stream: kept if layer in out else 1.0
