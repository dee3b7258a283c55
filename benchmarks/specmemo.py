"""Memory-bounded speculation: how much memory generation takes against how fast it is, on MT-Bench's conversations.

    python benchmarks/specmemo.py --bundle smollm2-135m-instruct.edge --questions spec_bench.jsonl

The claim is SpecMemo's (2025): bounded, at least 96% of the throughput in at least 65% less generation memory.
Generation memory is all above the weights: KV cache, logits, activations, tables. Each setting is a process of its own,
loaded as by `--memory` and `--context`: none, and each budget from which on the planner gives up less. They take both
turns of each question in turns with the others, greedily. The int8 prefill graph is left out everywhere: it is weights,
and reads prompts alone.
docs/lab/speculation.md says more.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drafting.budgeted import MIB, Planned, Talked
from processes import REST_S, Worker
from questions import CHAT, read
from report import Goal, table

KEPT, SAVED = 0.96, 0.65  # of the throughput, of generation memory
UNBOUNDED = "unbounded"
BLOCK = 4  # questions between two rests
# Kinds of the planner's accounting that are no weights and no program.
GENERATION = ("KV cache", "activations", "logits", "draft tables", "tables")


@dataclass
class Setting:
    """A budget, and what came of it."""

    name: str
    memory: int | None
    context: int  # that is asked for; 0: as much as there is room for
    speculate: str
    plan: Planned | None = None
    talked: list[Talked] = field(default_factory=list)
    full_mb: float | None = None  # private beside what was loaded, once its context was full

    @property
    def planned_mb(self) -> float:
        """Generation memory by the planner's accounting."""
        assert self.plan is not None
        return sum(self.plan.running.get(kind, 0) for kind in GENERATION) / MIB

    @property
    def private_mb(self) -> float:
        """The most private memory that a conversation had beside what was loaded."""
        return max(each.private_mb for each in self.talked)

    @property
    def tokens_per_s(self) -> float:
        return sum(t.tokens for t in self.talked) / sum(t.decode_s for t in self.talked)

    @property
    def answers_per_s(self) -> float:
        """Tokens per second with the reading of what was said counted."""
        return sum(t.tokens for t in self.talked) / sum(t.decode_s + t.prefill_s for t in self.talked)


def main() -> int:
    """Measure, print, write. Returns the exit status."""
    args = parse(sys.argv[1:])
    chats = read(args.questions)[CHAT][args.skip : args.skip + args.count]
    made = settings(args.bundle, args.context)
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "specmemo.log").open("w") as log:
        workers = {each.name: start(args, each, log) for each in made}
        blocks = [chats[at : at + BLOCK] for at in range(0, len(chats), BLOCK)]
        for turn, block in enumerate(blocks):
            for each in made if turn % 2 else made[::-1]:
                time.sleep(REST_S)
                for question in block:
                    got = workers[each.name].ask("talk", turns=question["turns"], n=args.tokens)
                    each.talked.append(_only(Talked, got))
        if args.fill is not None:
            text = args.fill.read_text(encoding="utf-8")
            for each in made:
                each.full_mb = _only(Talked, workers[each.name].ask("fill", text=text)).private_mb
        for worker in workers.values():
            worker.close()
    rows, found = summary(made), goals(made)
    written = {"bundle": args.bundle.name, "questions": len(chats), "tokens": args.tokens, "rows": rows}
    written |= {"settings": [dataclasses.asdict(each) for each in made], "goals": [vars(goal) for goal in found]}
    (args.out / "specmemo.json").write_text(json.dumps(written, indent=1) + "\n")
    print(f"{args.bundle.name}: {len(chats)} conversations of two turns, answers of up to {args.tokens} tokens, MiB\n")
    print(shown(rows) + "\n\n" + "\n".join(map(str, found)))
    try:
        plot(made, f"{args.bundle.stem}: conversations of MT-Bench", args.out / "specmemo.png")
    except ImportError:
        print("There is no plot, because matplotlib is not installed.")
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--questions", type=Path, required=True, help="Spec-Bench's question.jsonl")
    parser.add_argument("--context", type=int, default=1024, help="tokens of a conversation that budgets have room for")
    parser.add_argument("--count", type=int, default=40, help="conversations")
    parser.add_argument("--skip", type=int, default=0, help="conversations to leave out first")
    parser.add_argument("--tokens", type=int, default=256, help="most tokens of an answer")
    parser.add_argument("--fill", type=Path, help="a text to fill each context with, to see what is held then")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"), help="folder for the JSON, plot and log")
    return parser.parse_args(arguments)


def settings(bundle: Path, context: int) -> list[Setting]:
    """Unbounded first: the bundle's whole context, the widest steps, floats in the KV cache, and `auto`'s table or all
    tables. Then the budgets for `context` tokens from which on the planner gives up less, the largest first; of those
    without drafts the largest alone."""
    import edge
    from edge.runtime.budget import budgets, make_plan
    from edge.runtime.engine.variant import kv_dtypes

    opened = edge.open_bundle(bundle)
    whole = opened.manifest.context
    made = [
        Setting(f"{UNBOUNDED}, all tables", None, whole, "cascade"),
        Setting(UNBOUNDED, None, whole, "auto"),
    ]
    asked: dict[str, Any] = {"context": context, "speculate": "auto", "prefill": False, "kv": kv_dtypes(opened)}
    for budget in budgets(opened, **asked)[::-1]:
        demand = make_plan(opened, budget, **asked).demand
        drafts = f"up to {demand.width} tokens a step" if demand.width > 1 else "no drafts"
        made.append(Setting(f"{drafts}, {demand.kv}, prompts by {demand.chunk}", budget, context, "auto"))
        if demand.width == 1:
            break
    return made


def start(args: argparse.Namespace, each: Setting, log: Any) -> Worker:
    """The process of a setting."""
    settings = {"memory": each.memory, "speculate": each.speculate}
    request = {"model": str(args.bundle), "threads": args.threads, "capacity": each.context, "settings": settings}
    worker = Worker(sys.executable, "drafting.budgeted", log, request)
    each.plan = _only(Planned, worker.ask("plan"))
    return worker


def _only(kind: Any, got: Mapping[str, Any]) -> Any:
    """The dataclass whose fields are among what a worker answered."""
    return kind(**{each.name: got[each.name] for each in dataclasses.fields(kind)})


def summary(made: Sequence[Setting]) -> list[dict[str, Any]]:
    """A row for each setting; ratios are to the faster of those without a bound."""
    free = max((each for each in made if each.memory is None), key=lambda each: each.tokens_per_s)
    rows = []
    for each in made:
        assert each.plan is not None
        steps = sum(t.steps for t in each.talked)
        row: dict[str, Any] = {"setting": each.name, "budget_mb": None if each.memory is None else each.memory / MIB}
        row |= {"context": each.plan.context, "width": each.plan.width, "chunk": each.plan.chunk}
        row |= {"planned_mb": each.planned_mb, "planned_saved": 1 - each.planned_mb / free.planned_mb}
        row |= {"private_mb": each.private_mb, "private_saved": None}
        if free.private_mb > 0:  # a tiny model's may stay within what was held anyway
            row["private_saved"] = 1 - each.private_mb / free.private_mb
        row |= {"full_mb": each.full_mb, "full_saved": None}
        if each.full_mb is not None and free.full_mb is not None:
            row["full_saved"] = 1 - each.full_mb / free.full_mb
        row |= {"tokens_per_s": each.tokens_per_s, "ratio": each.tokens_per_s / free.tokens_per_s}
        row |= {"with_prompts": each.answers_per_s, "with_prompts_ratio": each.answers_per_s / free.answers_per_s}
        row["tokens_per_step"] = sum(t.tokens for t in each.talked) / max(1, steps)
        rows.append(row)
    return rows


def shown(rows: Sequence[Mapping[str, Any]]) -> str:
    """`summary` for people."""
    lines = [["setting", "budget", "context", "chunk", "generation, planned", "private", "context full", "tokens/s",
              "ratio", "tokens a step", "with prompts"]]  # fmt: skip
    for row in rows:
        private, full = (
            f"{row[f'{kind}_mb']:.0f} ({-row[f'{kind}_saved']:+.0%})" if row[f"{kind}_saved"] is not None else "-"
            for kind in ("private", "full")
        )
        lines.append([
            row["setting"],
            "none" if row["budget_mb"] is None else f"{row['budget_mb']:.0f}",
            f"{row['context']}",
            f"{row['chunk']}",
            f"{row['planned_mb']:.0f} ({-row['planned_saved']:+.0%})",
            private,
            full,
            f"{row['tokens_per_s']:.1f}",
            f"{row['ratio']:.3f}",
            f"{row['tokens_per_step']:.2f}",
            f"{row['with_prompts_ratio']:.2f}",
        ])
    return table(lines)


def goals(made: Sequence[Setting]) -> list[Goal]:
    """The claim, for the bounded setting that saves the most of those that keep enough of the throughput; if none does,
    for the one that keeps most of it."""
    rows = [row for row in summary(made) if row["budget_mb"] is not None and row["width"] > 1]
    enough = [row for row in rows if row["ratio"] >= KEPT]
    best = max(enough or rows, key=lambda row: (row["private_saved"] or 0.0) if enough else row["ratio"])
    found = [Goal(f"{best['setting']}: throughput of unbounded", best["ratio"], KEPT, True)]
    for kind in ("planned", "private", "full"):
        if best[f"{kind}_saved"] is not None:
            what = f"{best['setting']}: generation memory saved, {kind}"
            found.append(Goal(what, best[f"{kind}_saved"], SAVED, True))
    return found


def plot(made: Sequence[Setting], title: str, path: Path) -> None:
    """A bar for each setting: memory on the left, speed on the right, with what must be kept of both."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    free = max((each for each in made if each.memory is None), key=lambda each: each.tokens_per_s)
    figure, axes = plt.subplots(1, 2, figsize=(11, 0.45 * len(made) + 1.4), layout="constrained", sharey=True)
    names, colours = [each.name for each in made], ["#30638e" if each.memory is None else "#d1495b" for each in made]
    panels = [
        ("Memory of generation, planned, MiB", [each.planned_mb for each in made], (1 - SAVED) * free.planned_mb),
        ("Tokens per second", [each.tokens_per_s for each in made], KEPT * free.tokens_per_s),
    ]
    for axis, (heading, values, limit) in zip(axes, panels, strict=True):
        bars = axis.barh(names, values, color=colours)
        axis.bar_label(bars, [f"{value:.0f}" for value in values], fontsize=8, padding=3)
        axis.axvline(limit, color="#444", linewidth=0.8, linestyle="--")
        axis.set_title(heading, fontsize=10, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0.1)
    axes[0].invert_yaxis()
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
