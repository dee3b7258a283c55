"""Does choosing how much to draft beat every setting? Recorded greedy answers, replayed over a cost curve.

    python benchmarks/choosing.py --bundle smollm2-135m-instruct.edge --questions spec_bench.jsonl

Greedy answers are recorded once, in --out; then each drafter with each fixed length of drafts, and those that plan, are
replayed over them: what a step costs is what `edge profile` measured on this device, of this bundle or another one
(`--curve`), or a straight line (`--slope`).
docs/lab/speculation.md says more. `benchmarks/speculation.py --forms` runs the best of them for real.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drafting.replay import Line, Replayed, Setting, read, record, replay, write
from questions import TASKS, chosen
from questions import read as questions
from report import Goal, table

OVERALL = "overall"
LENGTHS = (1, 2, 3, 4, 5, 7, 10, 15)
MATCHES = (1, 2, 3)  # tokens that `lookup` asks for before it drafts
PLANNED = ("blend", "lookup", "cascade", "trigram", "recycle")
BEATS, NEAR = 1.05, 0.95  # of the best setting for all tasks, and of the best for each
SHOWN = 6  # settings in the table, of those that do not plan


def main() -> int:
    """Record, replay, print, write. Returns the exit status."""
    args = parse(sys.argv[1:])
    import edge
    from edge.runtime.costs.curve import load
    from edge.runtime.providers.threads import default_threads

    args.out.mkdir(parents=True, exist_ok=True)
    bundle, path = edge.open_bundle(args.bundle), args.out / f"answers-{args.bundle.stem}.jsonl"
    if not path.exists():
        asked = list(chosen(questions(args.questions), args.skip, args.count))
        model: Any = edge.load(args.bundle, context=args.context, speculate="off")
        firsts = [(task, question["question_id"], question["turns"][0]) for task, question in asked]
        fits = [each for each in firsts if len(model.prompt_ids(each[2])) + args.tokens <= args.context]
        write(path, record(model, fits, args.tokens, lambda line: print(line, flush=True)))
    recorded = read(path)
    measured = bundle if args.curve is None else edge.open_bundle(args.curve)
    costs = Line(args.slope) if args.slope is not None else load(measured, provider="cpu", threads=default_threads())
    if costs is None:
        print(
            f"choosing: there is no cost curve of {measured.root} here; run `edge profile`, or name a --slope.",
            file=sys.stderr,
        )
        return 2
    settings = [Setting(drafter) for drafter in PLANNED]
    settings += [Setting("lookup", length, match) for length in LENGTHS for match in MATCHES]
    settings += [Setting(drafter, length) for drafter in PLANNED if drafter != "lookup" for length in LENGTHS]
    plain = gains(replay_plain(recorded, costs))
    rows = {str(each): relative(gains(replay(bundle, recorded, each, costs)), plain) for each in settings}
    what = f"each further token {args.slope}" if args.slope is not None else "as measured on this device"
    what += f" of {args.curve.name}" if args.curve is not None else ""
    print(f"{args.bundle.name}: {len(recorded)} recorded answers; cost of steps: {what}; times plain decoding\n")
    print(shown(rows) + "\n")
    found = goals(rows)
    print("\n".join(map(str, found)))
    written = {"bundle": args.bundle.name, "answers": len(recorded), "slope": args.slope, "rows": rows}
    kind = args.slope if args.curve is None else args.curve.stem
    name = "choosing.json" if kind is None else f"choosing-{kind}.json"
    (args.out / name).write_text(json.dumps(written | {"goals": [vars(goal) for goal in found]}, indent=1) + "\n")
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--questions", type=Path, required=True, help="Spec-Bench's question.jsonl")
    cost = parser.add_mutually_exclusive_group()
    cost.add_argument("--slope", type=float, help="of each further token of a step, in plain steps")
    cost.add_argument("--curve", type=Path, metavar="BUNDLE", help="whose steps' measured cost counts")
    parser.add_argument("--count", type=int, default=20, help="questions of each task to record")
    parser.add_argument("--skip", type=int, default=20, help="questions of each task to leave out first")
    parser.add_argument("--tokens", type=int, default=110, help="most tokens of an answer")
    parser.add_argument("--context", type=int, default=2048, help="longer prompts are left out")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"), help="folder for answers and the JSON")
    return parser.parse_args(arguments)


def replay_plain(recorded: Sequence[Any], costs: Any) -> list[Replayed]:
    """The same answers without drafts."""
    unit = costs.ms(1, 0)
    found = []
    for each in recorded:
        contexts = range(len(each.prompt), len(each.prompt) + len(each.answer) - 1)
        found.append(Replayed(each.task, len(contexts), sum(costs.ms(1, context) for context in contexts) / unit))
    return found


def gains(replayed: Any) -> dict[str, float]:
    """Tokens for the time of a plain step, by task and over all."""
    tokens, costs = defaultdict[str, int](int), defaultdict[str, float](float)
    for each in replayed:
        for task in (each.task, OVERALL):
            tokens[task] += each.tokens
            costs[task] += each.cost
    return {task: tokens[task] / costs[task] for task in (OVERALL, *TASKS) if task in tokens}


def relative(found: dict[str, float], plain: dict[str, float]) -> dict[str, float]:
    """Times plain decoding."""
    return {task: value / plain[task] for task, value in found.items()}


def shown(rows: dict[str, dict[str, float]]) -> str:
    """Those that plan, and the best fixed ones over all tasks."""
    fixed = sorted((name for name in rows if name not in PLANNED), key=lambda name: -rows[name][OVERALL])[:SHOWN]
    tasks = list(next(iter(rows.values())))
    lines = [["", *tasks]]
    for name in (*(name for name in PLANNED if name in rows), *fixed):
        label = f"{name}, planned" if name in PLANNED else name
        lines.append([label, *(f"{rows[name][task]:.3f}" for task in tasks)])
    best = [max((rows[name][task], name) for name in rows if name not in PLANNED) for task in tasks]
    lines.append(["best fixed one in hindsight", *(f"{value:.3f} ({name})" for value, name in best)])
    return table(lines)


def goals(rows: dict[str, dict[str, float]]) -> list[Goal]:
    """`auto`, which is `blend`, and `cascade` against fixed settings of any one drafter: of its drafts' length, and of
    the match before it drafts as well, which is a harder bar."""
    single = [name for name in rows if name not in PLANNED and not name.startswith("cascade")]
    found = []
    for kind, fixed in {"length": [name for name in single if "/" not in name], "length and match": single}.items():
        best = max(fixed, key=lambda name: rows[name][OVERALL])
        for planned, label in {"blend": "auto (blend)", "cascade": "cascade"}.items():
            what = f"{label} / best fixed {kind} over all tasks, {best}"
            found.append(Goal(what, rows[planned][OVERALL] / rows[best][OVERALL], BEATS, True))
            ratios = []
            for task in (task for task in rows[planned] if task != OVERALL):
                here = max(fixed, key=lambda name: rows[name][task])
                ratios.append((rows[planned][task] / rows[here][task], task, here))
            value, task, here = min(ratios)
            what = f"{label} / best fixed {kind} of each task, least: {task}, {here}"
            found.append(Goal(what, value, NEAR, True))
    return found


if __name__ == "__main__":
    sys.exit(main())
