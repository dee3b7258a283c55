"""Placement of a bundle's graphs on execution providers: nodes, the weights that these read, and time."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edge.runtime.costs.record import Op, Placement
from edge.runtime.profile.graph_file import read_graph
from edge.runtime.providers.provider import Provider, Session

if TYPE_CHECKING:
    from edge.runtime.engine.engine import Engine


def of_engine(engine: Engine) -> list[Placement]:
    """Placement of the graphs that an engine has opened."""
    return placement_of(engine.provider, {name: (each, engine.path(name)) for name, each in engine.sessions.items()})


def placement_of(provider: Provider, graphs: Mapping[str, tuple[Session, Path]]) -> list[Placement]:
    """Placement of sessions' graphs. graphs: each session with its graph's file, by name. The share of time is known
    where one provider runs a whole graph."""
    return [row for name, (each, path) in graphs.items() for row in _rows(name, path, provider.placement(each))]


def _rows(name: str, path: Path, placed: Mapping[str, Sequence[str]]) -> list[Placement]:
    """A row for each provider of one graph, the one with the most nodes first. placed: names of nodes."""
    graph = read_graph(path)
    weights = {who: _weights(graph[node].weights for node in nodes if node in graph) for who, nodes in placed.items()}
    count, size = sum(map(len, placed.values())), sum(weights.values())
    time = 1.0 if len(placed) == 1 else None
    rows = [
        Placement(name, who, len(nodes), len(nodes) / count, weights[who], weights[who] / max(size, 1), time)
        for who, nodes in placed.items()
    ]
    return sorted(rows, key=lambda row: -row.nodes)


def _weights(read: Iterable[Mapping[str, int]]) -> int:
    """Bytes of all weights that nodes read, each counted once."""
    sizes: dict[str, int] = {}
    for weights in read:
        sizes.update(weights)
    return sum(sizes.values())


def with_times(placement: Sequence[Placement], ops: Sequence[Op]) -> list[Placement]:
    """Return the placement with shares of the time that was measured in each graph's smallest step."""
    sizes: dict[str, int] = {}
    for op in ops:
        sizes[op.graph] = min(op.size, sizes.get(op.graph, op.size))
    times: defaultdict[tuple[str, str | None], float] = defaultdict(float)
    for op in ops:
        if op.size == sizes[op.graph]:
            times[op.graph, op.provider] += op.us
    totals: defaultdict[str, float] = defaultdict(float)
    for (graph, _), us in times.items():
        totals[graph] += us
    return [
        dataclasses.replace(row, time_share=times[row.graph, row.provider] / totals[row.graph])
        if totals[row.graph]
        else row
        for row in placement
    ]
