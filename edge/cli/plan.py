"""`edge plan`: how much memory a bundle takes, by kind, and what fits into a budget."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from edge.bundle import Bundle
from edge.cli.answering import open_answering
from edge.cli.arguments import Parser, add_bundle, add_field, add_json
from edge.cli.tables import console, labelled, print_json, table
from edge.manifest import KV8

if TYPE_CHECKING:
    from edge.manifest import Manifest
    from edge.runtime.costs.curve import CostCurve
    from edge.runtime.memory.plan import Plan

NAME = "plan"
HELP = "Show the memory that a bundle takes, and what fits into a budget."
BAR = 28  # characters for the peak
EARLY = 128  # tokens of context
USUAL = 512  # tokens of a text that an encoder-decoder is planned for: few translate or summarize longer ones at once


def add_arguments(parser: Parser) -> None:
    from edge.runtime.load_options import LoadOptions
    from edge.runtime.providers import AUTO

    add_bundle(parser)
    add = parser.options()
    add_field(add, LoadOptions, "memory", "the budget: 300MB, 1.5GB, 512MiB or a number of bytes")
    add_field(add, LoadOptions, "context", "tokens of prompt and answer that must fit")
    add_field(add, LoadOptions, "beams", "beams of a search (default: the bundle's)")
    drafts = "what drafts: auto (default), off or a name, as in edge run"
    add_field(add, LoadOptions, "speculate", drafts, default=AUTO)
    add_field(add, LoadOptions, "kv", "type of the KV cache: auto (default), float32 or int8", default=AUTO)
    add_field(add, LoadOptions, "provider", default=AUTO)
    add_json(add)


def command(args: argparse.Namespace) -> None:
    """Show the private memory that a bundle takes, before anything is loaded, and what fits into a budget."""
    from edge.runtime.budget import budgets, make_exact_plan, make_plan
    from edge.runtime.costs.curve import load_both
    from edge.runtime.costs.measured import best_provider
    from edge.runtime.engine.variant import kv_dtypes, runs_whole, takes_prefill
    from edge.runtime.load import as_asked
    from edge.runtime.load_options import LoadOptions
    from edge.runtime.providers import AUTO, check_provider, provider_name
    from edge.runtime.providers.threads import default_threads
    from edge.runtime.speculate.drafter import check_argument, check_name, parts_of_model
    from edge.targets import CUDA

    speculate, context = args.speculate, args.context
    check_name(speculate)
    check_provider(args.provider)
    opened = open_answering(args.bundle)
    opened.check_sizes()
    if provider_name(args.provider) == CUDA:
        from edge.cli.plan_device import plan_device

        plan_device(opened, args.memory, context, args.beams, as_json=args.json)
        return
    opened = as_asked(opened, LoadOptions(speculate=speculate, provider=args.provider))
    check_argument(speculate, opened)
    parts, decoder = parts_of_model(speculate, opened), opened.manifest.encoder is None
    if context is None and args.memory is None and opened.manifest.text is not None:
        context = min(USUAL, opened.manifest.context)
    provider = best_provider(opened) if args.provider == AUTO else args.provider
    kv = kv_dtypes(opened, args.kv, whole=runs_whole(opened, parts), provider=provider)
    given: dict[str, Any] = {"context": context, "branches": args.beams, "speculate": speculate, "kv": kv}
    given["prefill"] = takes_prefill(opened, parts, provider)
    make = make_exact_plan if decoder else make_plan
    plan = make(opened, args.memory, **given)
    say = partial(print, file=sys.stderr)
    costs = load_both(opened, provider=provider, threads=default_threads(), say=say)
    speeds, drafts = _speeds(costs.get(plan.demand.kv), plan), _drafts(opened, plan, costs, speculate)
    rows = []
    for budget in budgets(opened, **given) if decoder else ():
        fitting = make(opened, budget, **given)
        chosen = {name: getattr(fitting.demand, name) for name in ("context", "chunk", "width", "kv", "prefill")}
        rows.append({"budget": budget, **chosen, "drafts": _drafts(opened, fitting, costs, speculate)})
    if args.json:
        found = {"name": opened.manifest.name, **summary(plan), "tokens_per_s": speeds, "drafts": drafts}
        print_json({**found, "budgets": rows})
    else:
        manifest = opened.manifest if given["prefill"] else dataclasses.replace(opened.manifest, prefill=None)
        _show(manifest, plan, speeds, drafts)
        if args.context is None and context is not None:
            _show_longest(make(opened, None, **given | {"context": None}))
        _show_budgets(manifest, rows)


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


def _speeds(costs: CostCurve | None, plan: Plan) -> dict[int, float] | None:
    """Tokens per second by tokens of context, early in an answer and where the plan's context ends; None where no cost
    curve was measured."""
    contexts = sorted({min(EARLY, plan.demand.context), plan.demand.context})
    return None if costs is None else {context: round(1e3 / costs.ms(1, context), 1) for context in contexts}


def _drafts(bundle: Bundle, plan: Plan, costs: Mapping[str, CostCurve], drafter: str) -> dict[str, Any] | None:
    """Return the memory that drafts cost and the speed that they gain under this plan; None without drafts.

    The gain is that of exact answers over one token a step: an estimate for `lookup`, which is close to `auto`; None
    for other drafters.
    """
    from edge.runtime.memory.footprint import MemoryModel
    from edge.runtime.speculate.drafter import AUTO, CHOSEN
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
    from rich.bar import Bar

    from edge.runtime.memory.plan import RESERVE, needed
    from edge.runtime.sizes import show_size

    out, footprint = console(), plan.footprint
    rows = table(f"{manifest.name}, private memory in MB", "Kind", "Loading", "Running", "At the peak", text=1)
    largest = max(footprint.kinds.values())
    for kind, size in sorted(footprint.running.items(), key=lambda item: -footprint.kinds[item[0]]):
        bar = Bar(largest, 0, footprint.kinds[kind], width=BAR, color="cyan")
        rows.add_row(kind, f"{footprint.loading[kind] / 1e6:.1f}", f"{size / 1e6:.1f}", bar)
    rows.add_section()
    sums = (sum(kinds.values()) for kinds in (footprint.loading, footprint.running))
    rows.add_row("together", *(f"{total / 1e6:.1f}" for total in sums))
    out.print(rows)
    smallest = show_size(needed(footprint))
    budget = f"{smallest} would do: the peak and {RESERVE:.0%} in reserve"
    if plan.budget is not None:
        budget = f"{show_size(plan.budget)}, {footprint.peak / plan.budget:.0%} of it used at the peak"
    for name, value in {**_facts(manifest, plan, speeds, drafts), "Budget": budget}.items():
        out.print(labelled(f"{name:14} ", value))


def _show_longest(plan: Plan) -> None:
    """Print the memory that an encoder-decoder needs for the longest input of a run without a budget. Attention between
    all tokens of an input grows with their square."""
    from edge.runtime.memory.plan import needed
    from edge.runtime.sizes import show_size

    what = f"{show_size(needed(plan.footprint))} for one of {plan.demand.source:,} tokens; see --context"
    console().print(labelled(f"{'Longer texts':14} ", what))


def _facts(
    manifest: Manifest, plan: Plan, speeds: dict[int, float] | None, drafts: dict[str, Any] | None
) -> dict[str, str]:
    """Return the settings that fit, as rows of words."""
    demand, decoder = plan.demand, manifest.encoder is None
    whole = ", all that the bundle has" if demand.context == manifest.context else ""
    facts = {"Context": f"{demand.context:,} tokens{whole}"}
    if demand.source:
        facts["Input"] = f"{demand.source:,} tokens"
    if decoder:
        facts["Prompt chunk"] = f"{demand.chunk} tokens"
    if any(graph.role == KV8 for graph in manifest.graphs):
        facts["KV cache"] = demand.kv
    if manifest.prefill is not None:
        facts["Int8 prefill"] = "used for long prompts" if demand.prefill else "omitted: long prompts take longer"
    if demand.branches > 1:
        facts["Beams"] = f"{demand.branches}"
    facts["Step width"] = "1 token" if plan.widest == 1 else f"up to {plan.widest} tokens"
    facts["Speed"] = "not measured on this device yet: edge profile does it"
    if speeds is not None:
        rates = [f"{rate:,.0f} tokens/s at {context:,} tokens of context" for context, rate in speeds.items()]
        facts["Speed"] = ", ".join(rates) + ", as edge profile measured it here"
    if decoder and drafts is None:
        facts["Drafts"] = "none: every step is one token"
    elif drafts is not None:
        gain = "edge profile --speculate measures the gain"
        if drafts["gain"] is not None:
            basis = "by this device's cost curve" if drafts["measured"] else "by guessed costs of wider steps"
            gain = f"about {drafts['gain']:.1f} times as fast, {basis}"
        taken = f"{drafts['bytes'] / 1e6:.1f} MB while running"
        facts["Drafts"] = f"up to {drafts['tokens']} tokens a step for {taken}; {gain}"
    return facts


def _show_budgets(manifest: Manifest, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of budgets: the settings that fit in each, and the cost and gain of drafts there."""
    if not rows:
        return
    drafting = [row["drafts"] for row in rows if row["drafts"] is not None]
    title = "From these budgets on, less is given up"
    if any(drafts["gain"] is None for drafts in drafting):
        title += "; edge profile --speculate measures the gain of drafts"
    elif not all(drafts["measured"] for drafts in drafting):
        title += "; the gain of drafts is a guess"
    names = "Budget,\nMB", "Context", "Prompt\nchunk", "KV cache", "Tokens\na step", "Drafts\ntake, MB", "Gain"
    shown = table(title, *names, *(["Int8\nprefill"] if manifest.prefill is not None else []))
    for row in rows:
        drafts = row["drafts"]
        taken = "" if drafts is None else f"{drafts['bytes'] / 1e6:.1f}"
        gain = "" if drafts is None or drafts["gain"] is None else f"{drafts['gain']:.2f}x"
        cells = [f"{row['budget'] / 1e6:.0f}", f"{row['context']:,}", f"{row['chunk']}", row["kv"], f"{row['width']}"]
        graph = ["yes" if row["prefill"] else "no"] if manifest.prefill is not None else []
        shown.add_row(*cells, taken, gain, *graph)
    console().print(shown)
