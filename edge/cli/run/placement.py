"""The execution providers that ran the graphs, for `edge run --json`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge.runtime.engine.engine import Engine


def placement(engine: Engine) -> list[dict[str, Any]]:
    """Return the execution providers of the graphs that an engine has opened, and the share that each ran: the fields
    of `edge.runtime.costs.record.Placement`. Shares of time between several providers are those that `edge profile`
    stored here."""
    from edge.runtime.costs.curve import stored
    from edge.runtime.profile.placement import of_engine

    rows = of_engine(engine)
    if any(row.time_share is None for row in rows):
        found = stored(engine.bundle, provider=engine.provider.name, threads=engine.threads)
        times = {(row.graph, row.provider): row.time_share for row in (found.placement if found is not None else ())}
        shares = [row.time_share or times.get((row.graph, row.provider)) for row in rows]
        rows = [dataclasses.replace(row, time_share=share) for row, share in zip(rows, shares, strict=True)]
    return [dataclasses.asdict(row) for row in rows]
