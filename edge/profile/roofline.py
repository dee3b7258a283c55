"""Roofline analysis of a profile's operators: the time of a step by part of the model and by layer, and the limit of
each part.

A part is compared with two roofs: the time that moving its bytes takes at the memory's measured rate, and the time of
its operations at the kernels' measured peak. The longer of the two is the minimum on this machine.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from edge.runtime.costs.record import Op, Peaks
from edge.runtime.profile.node_costs import ATTENTION, FREE, LOOKUPS, MOVES, PRODUCTS

NEITHER_BELOW = 1 / 4  # of the roof: what reaches less is bound by neither memory nor arithmetic
LAYER = re.compile(r"^.*?layers\.\d+(/|$)")
INNER = re.compile(r"/parts\.\d+(?=/|$)")

PRODUCT, ATTEND, NORM, MOVE, OTHER = "matrix product", "attention", "normalisation", "moving data", "value by value"
KINDS = (PRODUCT, ATTEND, NORM, OTHER, MOVE)  # of operators, as they are coloured

MEMORY, CACHES, ARITHMETIC, NEITHER = "memory", "caches", "arithmetic", "neither"


@dataclass(frozen=True)
class Limit:
    """The limit of an operator, and the share of the machine's rate that it reaches there (1: all of it).

    name: "memory", "arithmetic", "caches" if it moves more than the memory could (its input was still in the caches),
    or "neither" if it reaches little of both: it is too small to be worth starting, waits for threads, or its kernel is
    slow.
    """

    name: str
    reached: float


@dataclass(frozen=True)
class Part:
    """The time and work of one part of a model in a step, summed over all layers: nodes of one operator under one
    name."""

    path: str  # "self_attn/qkv_proj"; empty where the nodes have no name but their operator's
    op_type: str
    kind: str  # one of `KINDS`
    nodes: int
    us: float
    bytes: int | None
    flops: int | None
    arithmetic: str | None
    limit: Limit | None  # None where no peaks were measured, or nothing is known of the part

    @property
    def gb_per_s(self) -> float | None:
        return None if self.bytes is None else self.bytes / self.us / 1e3

    @property
    def gflop_per_s(self) -> float | None:
        return None if self.flops is None else self.flops / self.us / 1e3


@dataclass(frozen=True)
class StepTime:
    """One run of a graph: a step of `size` tokens at `context`, or an encoder's or frontend's run."""

    graph: str
    size: int
    context: int | None
    us: float
    parts: list[Part]  # the longest first
    layers: dict[str, list[tuple[int, float]]]  # by layer, each node as it runs: which of `parts`, and microseconds


def step_times(ops: Sequence[Op], peaks: Peaks | None) -> list[StepTime]:
    """A profile's operators, step by step; those that took no time that could be measured are left out."""
    steps: dict[tuple[str, int, int | None], list[Op]] = defaultdict(list)
    for op in ops:
        if op.us > 0:
            steps[op.graph, op.size, op.context].append(op)
    found = []
    for (graph, size, context), own in steps.items():
        parts = _parts(own, peaks)
        found.append(StepTime(graph, size, context, sum(op.us for op in own), parts, _layers(own, parts)))
    return found


def kind_of(op_type: str) -> str:
    """Return the kind of an operator, one of `KINDS`."""
    if op_type in PRODUCTS or op_type in {"Conv", "FusedConv"}:
        return PRODUCT
    if op_type in ATTENTION:
        return ATTEND
    if "Normalization" in op_type:
        return NORM
    return MOVE if op_type in FREE | LOOKUPS | MOVES else OTHER


def path_of(node: str) -> str:
    """The part of the model that a node's name stands for, the same in every layer."""
    parents = node.rpartition("/")[0]
    return INNER.sub("", LAYER.sub("", parents + "/" if parents else "")).strip("/")


def limit_of(us: float, moved: int | None, flops: int | None, arithmetic: str | None, peaks: Peaks) -> Limit | None:
    """Return the limit of an operator that runs for `us` microseconds; None if its work is unknown."""
    if us <= 0 or (not moved and not flops):
        return None
    peak = peaks.gemm_gflop_per_s.get(arithmetic or "float32")
    memory = (moved or 0) / peaks.memory_gb_per_s / 1e3 / us
    computing = (flops or 0) / peak / 1e3 / us if peak else 0.0
    if max(memory, computing) < NEITHER_BELOW:
        return Limit(NEITHER, max(memory, computing))
    if computing >= memory:
        return Limit(ARITHMETIC, computing)
    if memory > 1:
        return Limit(CACHES, (moved or 0) / (peaks.cache_gb_per_s or peaks.memory_gb_per_s) / 1e3 / us)
    return Limit(MEMORY, memory)


def _parts(ops: Sequence[Op], peaks: Peaks | None) -> list[Part]:
    groups: dict[tuple[str, str], list[Op]] = defaultdict(list)
    for op in ops:
        groups[path_of(op.node), op.op_type].append(op)
    parts = []
    for (path, op_type), own in groups.items():
        us, moved, flops = sum(op.us for op in own), _sum([op.bytes for op in own]), _sum([op.flops for op in own])
        arithmetic = own[0].arithmetic
        limit = limit_of(us, moved, flops, arithmetic, peaks) if peaks is not None else None
        parts.append(Part(path, op_type, kind_of(op_type), len(own), us, moved, flops, arithmetic, limit))
    return sorted(parts, key=lambda part: -part.us)


def _sum(numbers: Sequence[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _layers(ops: Sequence[Op], parts: Sequence[Part]) -> dict[str, list[tuple[int, float]]]:
    """Each layer's nodes as they run; what stands before and after the numbered layers counts as one too."""
    places = {(part.path, part.op_type): i for i, part in enumerate(parts)}
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for op in ops:
        found[op.layer].append((places[path_of(op.node), op.op_type], op.us))
    return dict(found)
