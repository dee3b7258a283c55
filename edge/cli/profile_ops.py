"""Tables of the time that a bundle's graphs spend in each operator."""

from __future__ import annotations

from collections import defaultdict

from rich.console import Console

from edge.cli.profile_tables import ms
from edge.cli.tables import console, labelled, table
from edge.profile.roofline import Part, StepTime, step_times
from edge.runtime.costs.record import Peaks, Profile

PARTS = 14  # shown of each step; the others are summed up


def show_ops(profile: Profile) -> None:
    """Print a profile's operators: for each step the parts of the model, the types of operators, and the layers."""
    out = console()
    if profile.peaks is not None:
        _peaks(profile.peaks, out)
    for step in step_times(profile.ops, profile.peaks):
        _parts(step, out)
        out.print(labelled("By operator ", _types(step)))
        out.print(labelled("By layer    ", _layers(step)))


def _peaks(peaks: Peaks, out: Console) -> None:
    cache = "" if peaks.cache_gb_per_s is None else f", {peaks.cache_gb_per_s:,.0f} from the caches"
    products = ", ".join(f"{rate:,.0f} {name}" for name, rate in peaks.gemm_gflop_per_s.items())
    reads = f"{peaks.memory_gb_per_s:,.0f} GB/s from memory{cache}"
    out.print(labelled("\nThis machine", f" reads {reads}; GFLOP/s: {products}"))


def _parts(step: StepTime, out: Console) -> None:
    context = "" if step.context is None else f" at context {step.context:,}"
    unit = "row" if step.context is None else "token"
    what = f"{step.size:,} {unit}{'' if step.size == 1 else 's'}"
    graph = "int8 prefill graph" if step.graph == "prefill" else f"{step.graph} graph"
    title = f"\nThe {graph}, {what}{context}: {ms(step.us / 1e3)} ms"
    rows = table(title, "Part", "Operator", "Nodes", "ms", "", "GB/s", "GFLOP/s", "Bound by", text=2)
    for part in step.parts[:PARTS]:
        share = f"{part.us / step.us:.0%}"
        rates = (_rate(part.gb_per_s), _rate(part.gflop_per_s))
        rows.add_row(part.path or "-", part.op_type, str(part.nodes), ms(part.us / 1e3), share, *rates, _limit(part))
    rest = step.parts[PARTS:]
    if rest:
        us = sum(part.us for part in rest)
        rows.add_row(f"{len(rest)} others", "", "", ms(us / 1e3), f"{us / step.us:.0%}", "", "", "")
    out.print(rows)


def _limit(part: Part) -> str:
    return "" if part.limit is None else f"{part.limit.name} {part.limit.reached:.0%}"


def _rate(value: float | None) -> str:
    return "" if not value else f"{value:,.3g}" if value < 100 else f"{value:,.0f}"


def _types(step: StepTime) -> str:
    """Shares of the types of operators, the largest first; those below half a percent are left out."""
    sums: dict[str, float] = defaultdict(float)
    for part in step.parts:
        sums[part.op_type] += part.us
    largest = sorted(sums.items(), key=lambda each: -each[1])
    return ", ".join(f"{name} {us / step.us:.0%}" for name, us in largest if us >= 0.005 * step.us)


def _layers(step: StepTime) -> str:
    """The numbered layers as a range, and by name what stands before and after them."""
    sums = {layer: sum(us for _, us in nodes) for layer, nodes in step.layers.items()}
    numbered = {int(layer): us for layer, us in sums.items() if layer.isdecimal()}
    said = [f"{layer} {ms(us / 1e3)} ms" for layer, us in sums.items() if not layer.isdecimal()]
    if numbered:
        slowest, fastest = max(numbered, key=numbered.__getitem__), min(numbered, key=numbered.__getitem__)
        low, high = (ms(numbered[layer] / 1e3) for layer in (fastest, slowest))
        each = f"{low} ms" if low == high else f"{low} (layer {fastest}) to {high} ms (layer {slowest})"
        said.insert(0, f"{len(numbered)} layers of {each}")
    return ", ".join(said)
