"""`edge plan`: how much memory a bundle takes, by kind, and what fits into a budget."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from edge.bundle import Bundle, open_bundle
from edge.cli.arguments import Parser, add_bundle, add_json, add_provider
from edge.manifest import KV8

if TYPE_CHECKING:
    from edge.manifest import Manifest
    from edge.runtime.memory.plan import Plan
    from edge.runtime.profile.curve import CostCurve

NAME = "plan"
HELP = "Show the memory that a bundle takes, and what fits into a budget."
BAR = 28  # characters for the peak
EARLY = 128  # tokens of context
EIGHTHS = " ▏▎▍▌▋▊▉"


def add_arguments(parser: Parser) -> None:
    add_bundle(parser)
    add = parser.add_argument
    add("--memory", metavar="SIZE", help="the budget: 300MB, 1.5GB, 512MiB or a number of bytes")
    add("--context", metavar="N", type=int, help="tokens of prompt and answer that must fit")
    add("--beams", metavar="N", type=int, help="beams of a search (default: the bundle's)")
    drafts = "what drafts: auto (default), off or a name, as of edge run"
    add("--speculate", metavar="WHAT", default="auto", help=drafts)
    kept = "what the KV cache is kept in: auto (default), float32 or int8"
    add("--kv", metavar="TYPE", default="auto", help=kept)
    add_provider(parser)
    add_json(parser)


def command(args: argparse.Namespace) -> None:
    """Show the private memory that a bundle takes, before anything is loaded, and what fits into a budget."""
    from edge.runtime.engine.variant import kv_dtypes
    from edge.runtime.memory.plan import budgets, make_exact_plan, make_plan
    from edge.runtime.speculate.base import check_argument, check_name, parts_of_model

    speculate, context = args.speculate, args.context
    check_name(speculate)
    opened = open_bundle(args.bundle)
    opened.check_sizes()
    check_argument(speculate, opened)
    whole = parts_of_model(speculate, opened) is None
    kinds = kv_dtypes(opened, args.kv, whole=whole)
    make = make_plan if opened.manifest.encoder is not None else make_exact_plan
    planned = partial(make, opened, branches=args.beams, speculate=speculate, prefill=whole, kv=kinds)
    plan = planned(args.memory, context=context)
    costs = _costs(opened, args.provider)
    speeds, drafts = _speeds(costs.get(plan.demand.kv), plan), _drafts(opened, plan, costs, speculate)
    rows = []
    if opened.manifest.encoder is None:
        each = budgets(opened, context=context, branches=args.beams, speculate=speculate, prefill=whole, kv=kinds)
        rows = [_row(opened, planned(budget, context=context), costs, speculate) for budget in each]
    if args.json:
        found = {"name": opened.manifest.name, **summary(plan), "tokens_per_s": speeds, "drafts": drafts}
        print(json.dumps({**found, "budgets": rows}, indent=1, ensure_ascii=False))
    else:
        _show(opened.manifest, plan, speeds, drafts)
        _show_budgets(opened.manifest, rows)


def summary(plan: Plan) -> dict[str, Any]:
    """A plan with the figures that follow from it, in bytes."""
    from edge.runtime.memory.plan import needed

    return {
        **dataclasses.asdict(plan.demand),
        "widest": plan.widest,
        "budget": plan.budget,
        "smallest_budget": needed(plan.footprint),
        "peak": plan.footprint.peak,
        "loading": plan.footprint.loading,
        "running": plan.footprint.running,
    }


def _costs(bundle: Bundle, provider: str) -> dict[str, CostCurve]:
    """The cost curves that `edge profile` left on this device, by what the KV cache is kept in."""
    from edge.runtime.profile.curve import load_both
    from edge.runtime.providers import name_of
    from edge.runtime.providers.threads import default_threads

    return load_both(bundle, provider=name_of(provider), threads=default_threads(), say=partial(print, file=sys.stderr))


def _speeds(costs: CostCurve | None, plan: Plan) -> dict[int, float] | None:
    """Tokens a second by tokens of context, early in an answer and where the plan's context ends; None where no cost
    curve was measured."""
    contexts = sorted({min(EARLY, plan.demand.context), plan.demand.context})
    return None if costs is None else {context: round(1e3 / costs.ms(1, context), 1) for context in contexts}


def _row(bundle: Bundle, plan: Plan, costs: Mapping[str, CostCurve], drafter: str) -> dict[str, Any]:
    """What one of several budgets has room for."""
    chosen = {name: getattr(plan.demand, name) for name in ("context", "chunk", "width", "kv", "prefill")}
    return {"budget": plan.budget, **chosen, "drafts": _drafts(bundle, plan, costs, drafter)}


def _drafts(
    bundle: Bundle, plan: Plan, costs: Mapping[str, CostCurve], drafter: str
) -> dict[str, Any] | None:
    """What drafts cost in memory and gain in speed under this plan; None where there are none.

    The gain is that of exact answers over one token a step, and an estimate for `lookup`, which is near what `auto`
    brings: None for other drafters.
    """
    from edge.runtime.memory.footprint import MemoryModel
    from edge.runtime.speculate.base import AUTO, CHOSEN
    from edge.runtime.speculate.planner import StepCosts, expected_gain

    width = plan.demand.width
    if width < 2 or bundle.manifest.encoder is not None:
        return None
    model, without = MemoryModel(bundle), dataclasses.replace(plan.demand, width=1, drafts=0)
    running = [sum(model.footprint(demand).running.values()) for demand in (plan.demand, without)]
    curve = costs.get(plan.demand.kv)
    plain, even = (StepCosts(lambda: curve, width, multiple) for multiple in (1, 2))
    for steps in (plain, even):
        steps.begin()
    expected = expected_gain(even.ratios, width) / plain.ratios[2]
    gain = round(expected, 2) if drafter in (AUTO, CHOSEN, "lookup") else None
    return {"tokens": width - 1, "bytes": running[0] - running[1], "gain": gain, "measured": curve is not None}


def _show(manifest: Manifest, plan: Plan, speeds: dict[int, float] | None, drafts: dict[str, Any] | None) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from edge.runtime.memory.plan import RESERVE, needed, show_size

    console, tides = Console(highlight=False), plan.footprint
    title = f"{manifest.name}, private memory in MB"
    table = Table(box=box.SIMPLE, title=title, title_justify="left", title_style="bold", show_footer=True)
    sums = [f"{sum(kinds.values()) / 1e6:.1f}" for kinds in (tides.loading, tides.running)]
    table.add_column("Kind", footer="together", no_wrap=True)
    table.add_column("Loading", footer=sums[0], justify="right")
    table.add_column("Running", footer=sums[1], justify="right")
    table.add_column("At the peak", no_wrap=True)
    largest = max(tides.kinds.values())
    for kind, size in sorted(tides.running.items(), key=lambda item: -tides.kinds[item[0]]):
        bar = f"[cyan]{_bar(tides.kinds[kind] / largest)}[/]"
        table.add_row(kind, f"{tides.loading[kind] / 1e6:.1f}", f"{size / 1e6:.1f}", bar)
    console.print(table)
    for name, value in (_facts(manifest, plan) | {"Speed": _speed(speeds)} | _gains(manifest, drafts)).items():
        console.print(f"[bold]{name:14}[/] {value}")
    smallest = show_size(needed(tides))
    if plan.budget is None:
        console.print(f"[bold]{'Budget':14}[/] {smallest} would do: the peak and {RESERVE:.0%} in reserve")
    else:
        used = tides.peak / plan.budget
        console.print(f"[bold]{'Budget':14}[/] {show_size(plan.budget)}: {_bar(used, 30)} {used:.0%} at the peak")


def _show_budgets(manifest: Manifest, rows: Sequence[Mapping[str, Any]]) -> None:
    """What each of several budgets has room for, and what drafts cost and bring there."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    if not rows:
        return
    drafting = [row["drafts"] for row in rows if row["drafts"] is not None]
    title = "From these budgets on, less is given up"
    if any(drafts["gain"] is None for drafts in drafting):
        title += "; edge profile --speculate measures what drafts bring"
    elif not all(drafts["measured"] for drafts in drafting):
        title += "; what drafts bring is guessed"
    table = Table(box=box.SIMPLE, title=title, title_justify="left", title_style="bold")
    for heading in ("Budget, MB", "Context", "Prompt chunk", "KV cache", "Tokens a step", "Drafts take, MB", "bring"):
        table.add_column(heading, justify="right")
    if manifest.prefill is not None:
        table.add_column("Int8 prefill")
    for row in rows:
        drafts = row["drafts"]
        taken = "" if drafts is None else f"{drafts['bytes'] / 1e6:.1f}"
        gain = "" if drafts is None or drafts["gain"] is None else f"{drafts['gain']:.2f}x"
        cells = [f"{row['budget'] / 1e6:.0f}", f"{row['context']:,}", f"{row['chunk']}", row["kv"], f"{row['width']}"]
        graph = ["yes" if row["prefill"] else "no"] if manifest.prefill is not None else []
        table.add_row(*cells, taken, gain, *graph)
    Console(highlight=False).print(table)


def _facts(manifest: Manifest, plan: Plan) -> dict[str, str]:
    """What fits, in words."""
    demand = plan.demand
    all_of_it = demand.context == manifest.context
    facts = {"Context": f"{demand.context:,} tokens" + (", all that the bundle has" if all_of_it else "")}
    if demand.source:
        facts["Input"] = f"{demand.source:,} tokens"
    if manifest.encoder is None:
        facts["Prompt chunk"] = f"{demand.chunk} tokens"
    if any(graph.role == KV8 for graph in manifest.graphs):
        facts["KV cache"] = demand.kv
    if manifest.prefill is not None:
        facts["Int8 prefill"] = "used for long prompts" if demand.prefill else "omitted: long prompts take longer"
    if demand.branches > 1:
        facts["Beams"] = f"{demand.branches}"
    facts["Step width"] = "1 token" if plan.widest == 1 else f"up to {plan.widest} tokens"
    return facts


def _gains(manifest: Manifest, drafts: dict[str, Any] | None) -> dict[str, str]:
    if manifest.encoder is not None:
        return {}
    if drafts is None:
        return {"Drafts": "none: every step is one token"}
    basis = "by this device's cost curve" if drafts["measured"] else "by guessed costs of wider steps"
    gain = "edge profile --speculate measures the gain"
    if drafts["gain"] is not None:
        gain = f"about {drafts['gain']:.1f} times as fast, {basis}"
    return {
        "Drafts": f"up to {drafts['tokens']} tokens a step for {drafts['bytes'] / 1e6:.1f} MB while running; {gain}"
    }


def _speed(speeds: dict[int, float] | None) -> str:
    if speeds is None:
        return "not measured on this device yet: edge profile does it"
    rates = [f"{rate:,.0f} tokens/s at {context:,} tokens of context" for context, rate in speeds.items()]
    return ", ".join(rates) + ", as edge profile measured it here"


def _bar(share: float, width: int = BAR) -> str:
    """A bar of `share` of the width, exact to an eighth of a character."""
    eighths = round(min(share, 1) * width * 8)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
