"""Costs of a step of a bundle's graphs for a kind of device: bytes moved, multiply-adds, and the minimum time on a
chip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edge.bundle import Bundle
from edge.cli.tables import table
from edge.targets import (
    CUDA,
    SOCS,
    STATIC,
    Cost,
    DeviceTarget,
    Soc,
    Target,
    has_target,
    read_device_target,
    read_target,
)

if TYPE_CHECKING:
    from rich.console import Console

ESTIMATE = "an estimate: bytes moved over the memory's published bandwidth; nobody has measured it"
UNKNOWN = "What a step moves is unknown: the bundle was exported before that was counted. Export the model again."


def targets_of(bundle: Bundle) -> list[Target]:
    """Return the targets whose graphs have fixed sizes. BundleError if one cannot be read."""
    return [read_target(bundle, name) for name in STATIC if has_target(bundle, name)]


def for_cuda(bundle: Bundle) -> DeviceTarget | None:
    """Return the bundle's target for CUDA; None if it has none. BundleError if it cannot be read."""
    return read_device_target(bundle, CUDA) if has_target(bundle, CUDA) else None


def show_cuda(target: DeviceTarget, out: Console) -> None:
    """Print what it is, and how close to the model in float32."""
    kind = target.weights if target.weights == target.activations else f"{target.weights}, {target.activations}"
    quality = target.quality
    checked = f": KL divergence {quality['kl_mean']:.4f}, perplexity {quality['perplexity']:.3f}" if quality else ""
    against = f" (float32: {quality['perplexity_float32']:.3f})" if quality else ""
    out.print(f"Graphs for {target.name}, {kind}{checked}{against}.")


def summary(target: Target) -> dict[str, Any]:
    """Return the figures for `--json`. A figure is null if it is unknown."""
    graphs = []
    for name, tokens, context, cost in _graphs(target):
        estimates = {soc.name: _estimate(soc, tokens, cost) for soc in _socs(target)}
        moved = None if cost is None else {"weights": cost.weights, "kv": cost.kv, "rest": cost.rest}
        products = None if cost is None else cost.products
        shape = {"name": name, "tokens": tokens, "context": context}
        graphs.append({**shape, "bytes": moved, "products": products, "estimates": estimates})
    return {"name": target.name, "context": target.context, "graphs": graphs, "estimates_are": ESTIMATE}


def show(target: Target, out: Console) -> None:
    """Print the same as a table."""
    socs: dict[float | None, list[Soc]] = {}  # those of one bandwidth share a column
    for soc in _socs(target):
        socs.setdefault(soc.bandwidth, []).append(soc)
    names = [",\n".join(soc.name for soc in alike) for alike in socs.values()]
    columns = "Graph", "MB\nmoved", "of them\nKV", "Million\nmultiply-\nadds", *(f"{name},\nms ≥" for name in names)
    shown = table(f"{target.name}, context {target.context:,}", *columns, text=1, compact=True)
    for name, _, _, cost in _graphs(target):
        if cost is None:
            out.print(f"{target.name}: {UNKNOWN}")
            return
        moved = (f"{count / 1e6:,.1f}" for count in (cost.bytes, cost.kv, cost.products))
        shown.add_row(name, *moved, *(_number(cost.shortest_ms(soc)) for soc, *_ in socs.values()))
    out.print(shown)
    out.print(f"ms ≥: at least this long a step ({ESTIMATE}).")
    (step, *_), *_ = target.by_context.values()
    rates = [(alike, _estimate(alike[0], 1, step.cost)["tokens_per_s_at_most"]) for alike in socs.values()]
    told = ", ".join(
        f"{rate:,.0f} on {' and '.join(soc.name for soc in alike)}" for alike, rate in rates if rate is not None
    )
    of = f" (context {next(iter(target.by_context)):,})" if target.shorter else ""
    if told:
        out.print(f"So one token a step is at most, in tokens/s{of}: {told}.")


def _graphs(target: Target) -> list[tuple[str, int | None, int | None, Cost | None]]:
    """Names, tokens of a step, rows of the cache, and costs."""
    steps = [
        (f"steps of {graph.size}" + (f", {context:,}" if target.shorter else ""), graph.size, context, graph.cost)
        for context, graphs in target.by_context.items()
        for graph in graphs
    ]
    return [*steps, *([] if target.encoder is None else [("encoder", None, None, target.encoder.cost)])]


def _socs(target: Target) -> list[Soc]:
    """The chips that it was compiled for; all that are known where there are none."""
    compiled = [SOCS[each.soc] for each in target.compiled if each.soc in SOCS]
    return compiled or list(SOCS.values())


def _estimate(soc: Soc, tokens: int | None, cost: Cost | None) -> dict[str, float | None]:
    """Estimate the time and rate of a graph on a chip. Tokens a second are those of answers without drafts: one a
    step."""
    shortest = None if cost is None else cost.shortest_ms(soc)
    rate = None if shortest is None or tokens != 1 else 1e3 / shortest
    return {"ms_at_least": shortest, "tokens_per_s_at_most": rate}


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:,.2f}"
