"""Search for the layers whose loss changes a model least before it is trained. Routers start from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from edge.export.facts.progress import Progress
from edge.export.tune.gates import Gate
from edge.export.tune.network import Network, Tensors, divergence
from edge.home import replace_text


def least_missed(
    network: Network,
    units: Sequence[Sequence[int]],
    count: int,
    batches: Sequence[Tensors],
    notes: Path,
    progress: Progress,
) -> list[int]:
    """The indices of the `count` units of layers that answers miss least, in the order in which they can go: each is
    the one whose loss, together with those before it, moves the model's predictions least (KL divergence). Which units
    these are is decided by losing each of them alone.

    notes: a file that keeps what was found, from which a search that was interrupted goes on.
    """
    found = json.loads(notes.read_text(encoding="utf-8")) if notes.exists() else {}
    chosen: list[int] = found.get("chosen", [])
    candidates: list[int] = found.get("candidates", list(range(len(units))))
    costs: dict[int, float] = {int(unit): cost for unit, cost in found.get("costs", {}).items()}
    rounds = [len(units), *range(count - 1, 0, -1)]
    with torch.no_grad():
        teachers = [network.logits(batch, None, adapted=False) for batch in batches]
        while len(chosen) < count:
            for unit in candidates:
                if unit in costs:
                    continue
                done = sum(rounds[: len(chosen)]) + len(costs)
                progress(done, sum(rounds), "finding the layers that are missed least")
                out = {layer for i in (*chosen, unit) for layer in units[i]}
                costs[unit] = sum(
                    float(divergence(teacher, network.logits(batch, without(out, batch), adapted=False)))
                    for batch, teacher in zip(batches, teachers, strict=True)
                )
                _write(notes, chosen, candidates, costs)
            ranked = sorted(costs, key=lambda unit: costs[unit])
            chosen.append(ranked[0])
            candidates, costs = ranked[1 : 1 + count - len(chosen)], {}
            _write(notes, chosen, candidates, costs)
    return chosen


def _write(notes: Path, chosen: list[int], candidates: list[int], costs: dict[int, float]) -> None:
    replace_text(notes, json.dumps({"chosen": chosen, "candidates": candidates, "costs": costs}) + "\n")


def without(out: set[int], batch: Tensors) -> Gate:
    """Leaves these layers out of all answers."""
    kept = (~batch.answer).float()[..., None]
    return lambda layer, stream: kept if layer in out else 1.0
