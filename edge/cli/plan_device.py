"""`edge plan --provider cuda`: what a bundle's graphs for CUDA take of a GPU's memory."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from edge.cli.tables import console, labelled, print_json, table
from edge.errors import InputError
from edge.runtime.engine.graphs.device_plan import LEAST, plan_for
from edge.runtime.limits import DEFAULT_CONTEXT
from edge.runtime.sizes import parse_size
from edge.targets import CUDA, has_target, read_device_target

if TYPE_CHECKING:
    from edge.bundle import Bundle


def plan_device(
    bundle: Bundle, memory: str | None, context: int | None, branches: int | None, *, as_json: bool
) -> None:
    """Print what the graphs take, and what a budget has room for. InputError where the bundle has no such graphs, or
    the budget no room."""
    name = bundle.manifest.name
    if not has_target(bundle, CUDA):
        raise InputError(f"{name} has no graphs for CUDA; export it with --target cuda, or choose the provider cpu.")
    limit = bundle.manifest.context
    most = min(DEFAULT_CONTEXT, limit) if context is None else context
    if not 1 <= most <= limit:
        raise InputError(f"The context must be between 1 and {limit} tokens for this bundle, not {most}.")
    plan = plan_for(bundle, read_device_target(bundle, CUDA), most, branches or 1)
    fitting = None
    if memory is not None:
        budget = parse_size(memory)
        fitting = plan.fitting(budget)
        if fitting < LEAST:
            raise InputError(
                f"{name} takes about {(plan.weights + plan.workspace) / 1e6:,.0f} MB of a GPU's memory without any "
                f"text, and {budget / 1e6:,.0f} MB have no room for that."
            )
    if as_json:
        print_json({"name": name, **dataclasses.asdict(plan), "kv": plan.kv, "total": plan.total, "fits": fitting})
        return
    rows = table(f"{name}, memory of a GPU in MB", "Kind", "MB", text=1)
    kinds = {"weights": plan.weights, "KV cache": plan.kv, "workspace (estimate)": plan.workspace}
    for kind, size in kinds.items():
        rows.add_row(kind, f"{size / 1e6:,.1f}")
    rows.add_section()
    rows.add_row("together", f"{plan.total / 1e6:,.1f}")
    out = console()
    out.print(rows)
    facts: dict[str, Any] = {"Context": f"{plan.context:,} tokens, {plan.branches} at a time"}
    if fitting is not None:
        facts["Fits"] = f"a context of {fitting:,} tokens"
    for title, value in facts.items():
        out.print(labelled(f"{title:14} ", value))
