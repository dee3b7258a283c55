"""Speculative decoding beside plain decoding, over Spec-Bench's questions.

    python benchmarks/speculation.py --bundle smollm2-135m-instruct.edge --questions spec_bench.jsonl

Figures are tokens per second after the first token. A prompt is read once, and every form goes on from there, in turns,
on one engine: all see the same state of the machine. Plain decoding runs one token a step, whatever that does to the
last bits; the other forms are exact, as `edge run` is, or not where their name ends in ~. `--check` compares texts
instead: exact answers with and without drafts; see docs/lab/speculation.md.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from comparison import names_of, say
from questions import TASKS, Question, chosen, read
from report import Goal, table

if TYPE_CHECKING:
    from edge.runtime.decode.answer import Result
    from edge.runtime.decode.generate_options import GenerateOptions
    from edge.runtime.model import Model

OFF, AUTO, OVERALL = "off", "auto", "overall"
FORM = re.compile(r"(.+?)(~)?(?::(\d+)(?:/(\d+))?)?")  # a drafter, whether not exact, its tokens and a match
FEWEST = 16  # tokens of an answer whose rate is worth comparing by itself
GOALS = {OVERALL: 1.3, "translation": 1.8}
NO_TASK_UNDER, NO_QUESTION_UNDER = 0.98, 0.93
DRAFTING = 0.05  # of a plain step's time, at most
SUMMED = ("steps", "drafted", "accepted", "draft_s")
Asked = tuple[str, int, str]  # task, number and first turn


@dataclass(frozen=True)
class Answer:
    """One form's fastest answer to a question. tokens: after the first, which the seconds are for. turns: tokens per
    second each time that it was given."""

    task: str
    question: int
    form: str
    tokens: int
    seconds: float
    speculation: dict[str, Any] | None
    turns: list[float]


def main() -> int:
    """Measure, print, write. Returns the exit status."""
    args = parse(sys.argv[1:])
    asked = list(chosen(read(args.questions), args.skip, args.count, args.tasks))
    forms = models(args)
    fits = fitting(args, forms[OFF], asked)
    if args.check:
        return check(args, forms, fits)
    args.out.mkdir(parents=True, exist_ok=True)
    answers = [answer for number in range(len(fits)) for answer in answered(args, forms, fits, number)]
    rows = summary(answers, args.forms)
    say(f"{args.bundle.name}, temperature {args.temperature:g}, up to {args.tokens} tokens\n\n{forms_table(rows)}\n")
    say("\n".join(str(goal) for form in args.forms[1:] for goal in goals(rows, form)))
    content = {"bundle": args.bundle.name, "rows": rows, "answers": list(map(asdict, answers))}
    (args.out / "speculation.json").write_text(json.dumps(content, indent=1) + "\n")
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    add = parser.add_argument
    add("--bundle", type=Path, required=True)
    add("--questions", type=Path, required=True, help="Spec-Bench's question.jsonl")
    forms = "compared with plain decoding: auto, drafters, lookup:K for always K tokens, lookup:K/N where N matched; "
    add("--forms", default=AUTO, help=forms + "with ~ after the name as with --no-exact; several between blanks")
    tasks = partial(names_of, TASKS)
    add("--tasks", type=tasks, default=list(TASKS), metavar="NAME,...", help="default: all of " + ",".join(TASKS))
    add("--count", type=int, default=20, help="questions of each task; default: 20")
    add("--skip", type=int, default=0, help="questions of each task to leave out first")
    add("--tokens", type=int, default=200, help="most tokens of an answer; default: 200")
    add("--context", type=int, default=2048, help="longer prompts are left out")
    what = "answers of each form to a question: the fastest counts in rates, and for single questions their median"
    add("--repeats", type=int, default=3, help=what)
    add("--temperature", type=float, default=0.0, help="default: 0, which is greedy")
    add("--threads", type=int)
    add("--check", action="store_true", help="compare exact texts with and without drafts")
    add("--out", type=Path, default=Path("build/benchmarks"), help="folder for the JSON")
    args = parser.parse_args(arguments)
    args.forms = [OFF, *args.forms.split()]
    return args


def models(args: argparse.Namespace) -> dict[str, Model]:
    """A model for each form, all over one engine, whose caches have room for exact steps."""
    import edge
    from edge.runtime.load import open_engine
    from edge.runtime.model import Model
    from edge.runtime.text.tokenizer import Text

    bundle = edge.open_bundle(args.bundle)
    parts = {form: FORM.fullmatch(form) for form in args.forms}
    # Segments run in the place of the whole graph where a model drafts with some of its layers.
    own = next((found[1] for found in parts.values() if found and found[1].split("=")[0] == "self"), OFF)
    engine = open_engine(bundle, context=args.context, threads=args.threads, exact=True, speculate=own, kv="auto")
    text, made = Text(bundle), dict[str, Model]()
    for form, found in parts.items():
        assert found is not None
        name, _, length, match = found.groups()
        made[form] = Model(bundle, engine, text, speculate=name)
        if length:
            fix(made[form].speculation, name, int(length), int(match or 1))
        made[form].generate("Say hello, and hello again.", edge.GenerateOptions(max_tokens=24))
    return made


def fix(speculation: Any, drafter: str, length: int, match: int = 1) -> None:
    """Let drafts always be run, up to `length` tokens, where `match` tokens or more matched: in the place of what the
    planner expects to pay."""
    from edge.runtime.decode.draft import NOTHING
    from edge.runtime.speculate.drafter import Budget

    def budget(most: int, context: int, forced: int = 0) -> Budget:
        return Budget(min(most, length), 0.0, False)

    def cut(draft: Any) -> Any:
        if not draft.tokens or (drafter == "lookup" and draft.grades[0] < match):  # graded by the match
            return NOTHING
        return draft._replace(tokens=draft.tokens[:length], grades=draft.grades[:length])

    speculation.planner.budget, speculation.planner.cut = budget, cut


def fitting(args: argparse.Namespace, model: Model, asked: Iterable[tuple[str, Question]]) -> list[Asked]:
    """The questions whose prompts leave room for an answer."""
    found = [(task, question["question_id"], question["turns"][0]) for task, question in asked]
    return [each for each in found if len(model.prompt_ids(each[2])) + args.tokens <= args.context]


class Prompted:
    """A prompt that an engine has read, from which answer after answer goes on."""

    def __init__(self, model: Model, prompt: str, room: int) -> None:
        import numpy as np

        from edge.runtime.decode.generate_options import never
        from edge.runtime.decode.loop import prefill

        self._ids, self._engine = model.prompt_ids(prompt), model.engine
        self._cache = model.engine.new_cache(min(model.engine.context, len(self._ids) + room))
        if len(self._ids) > 1:
            read = np.asarray(self._ids[:-1], np.int64)
            prefill(self._engine, self._cache, read, chunk=model.prefill_chunk, interrupted=never)

    def answer(self, model: Model, options: GenerateOptions, exact: bool = True) -> Result:
        """What `model.generate` gives, but for the time to the first token."""
        from edge.runtime.decode.answer import answer, collect

        self._engine.exact = exact
        self._cache.truncate(len(self._ids) - 1)
        pieces = answer(
            model.engine,
            model.text,
            self._cache,
            self._ids,
            options,
            chunk=model.prefill_chunk,
            started_ns=time.perf_counter_ns(),
            speculation=model.speculation,
        )
        return collect(pieces)


def answered(args: argparse.Namespace, forms: dict[str, Model], fits: Sequence[Asked], number: int) -> Iterable[Answer]:
    """Each form's fastest answer to a question, which is asked in turns."""
    import edge

    task, question, prompt = fits[number]
    prompted = Prompted(forms[OFF], prompt, args.tokens)
    options = edge.GenerateOptions(max_tokens=args.tokens, temperature=args.temperature, seed=number)
    given: dict[str, list[Result]] = {form: [] for form in forms}
    for turn in range(args.repeats):
        for form in list(forms)[:: 1 if (number + turn) % 2 else -1]:
            exact = form != OFF and "~" not in form
            given[form].append(prompted.answer(forms[form], options, exact))
    for form, results in given.items():
        turns = [result.decode_tokens_per_s or 0.0 for result in results]
        best = results[turns.index(max(turns))]
        if (tokens := best.generated_tokens - 1) > 0:
            yield Answer(task, question, form, tokens, tokens / max(turns), best.speculation, turns)


def rate(answers: Sequence[Answer]) -> float:
    """Tokens per second over all of them."""
    return sum(a.tokens for a in answers) / sum(a.seconds for a in answers)


def summary(answers: Sequence[Answer], forms: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each form and task, and for all tasks together; ratios are to the first form, over its questions. Rates
    are those of each question's fastest answer. Single questions are compared by the median of the turns' ratios: the
    answers of a turn are given one right after the other, so that they see the same state of the machine."""
    rows = []
    for form in forms:
        for task in [OVERALL, *TASKS]:
            here = [a for a in answers if task in (a.task, OVERALL)]
            own = [a for a in here if a.form == form]
            by = {a.question: a for a in here if a.form == forms[0]}
            plain = [by[a.question] for a in own if a.question in by]
            if not plain:
                continue
            each = {
                a.question: median(x / y for x, y in zip(a.turns, by[a.question].turns, strict=True))
                for a in own
                if min(a.tokens, by[a.question].tokens) >= FEWEST
            }
            worst = min(each, key=lambda question: each[question], default=None)
            row: dict[str, Any] = {"form": form, "task": task, "questions": len(own), "tokens_per_s": rate(own)}
            row |= {"ratio": rate(own) / rate(plain), "worst": each.get(worst), "worst_question": worst}  # type: ignore[arg-type]
            did = [a.speculation for a in own if a.speculation is not None]
            if did:
                sums = {key: sum(d[key] for d in did) for key in SUMMED}
                row |= sums | {"accepted_per_step": sums["accepted"] / max(1, sums["steps"])}
                row["draft_ms_per_step"] = 1e3 * sums["draft_s"] / max(1, sums["steps"])
            rows.append(row)
    return rows


def forms_table(rows: Sequence[dict[str, Any]]) -> str:
    """`summary` for people."""
    lines = [
        ["form", "task", "questions", "tokens/s", "ratio", "worst question", "accepted a step", "draft, ms a step"]
    ]
    for row in rows:
        worst = "" if row["worst"] is None else f"{row['worst']:.2f}"
        did = [f"{row['accepted_per_step']:.2f}", f"{row['draft_ms_per_step']:.3f}"] if "steps" in row else ["", ""]
        shown = [f"{row['questions']}", f"{row['tokens_per_s']:.1f}", f"{row['ratio']:.2f}", worst, *did]
        lines.append([row["form"], row["task"], *shown])
    return table(lines)


def goals(rows: Sequence[dict[str, Any]], form: str) -> list[Goal]:
    """What this project promises of drafts against plain decoding."""
    own = {row["task"]: row for row in rows if row["form"] == form}
    found = [Goal(f"{form}, {task}", own[task]["ratio"], limit, True) for task, limit in GOALS.items() if task in own]
    if tasks := [row for task, row in own.items() if task != OVERALL]:
        least = min(tasks, key=lambda row: row["ratio"])
        found.append(Goal(f"{form}, least task ({least['task']})", least["ratio"], NO_TASK_UNDER, True))
    every = own.get(OVERALL, {})
    if every.get("worst") is not None:
        what = f"{form}, worst question ({every['worst_question']})"
        found.append(Goal(what, every["worst"], NO_QUESTION_UNDER, True))
    if "draft_ms_per_step" in every:
        plain_ms = 1e3 * every["ratio"] / every["tokens_per_s"]  # of a step of one token
        found.append(Goal(f"{form}, drafting / a plain step", every["draft_ms_per_step"] / plain_ms, DRAFTING, False))
    return found


def check(args: argparse.Namespace, forms: dict[str, Model], fits: Sequence[Asked]) -> int:
    """Compare exact answers with those without drafts, token for token; the status is 1 where one differs."""
    import edge

    options = edge.GenerateOptions(max_tokens=args.tokens, temperature=args.temperature)
    accepted, differing = dict.fromkeys(args.forms[1:], 0), []
    for _, question, prompt in fits:
        prompted = Prompted(forms[OFF], prompt, args.tokens)
        wanted = prompted.answer(forms[OFF], options).token_ids
        for form in accepted:
            result = prompted.answer(forms[form], options)
            accepted[form] += (result.speculation or {"accepted": 0})["accepted"]
            if result.token_ids != wanted:
                differing.append((form, question))
    found = f"{len(differing)} differ: {differing}" if differing else "none differs"
    counts = ", ".join(f"{form} {count}" for form, count in accepted.items())
    say(f"{len(fits)} questions, {len(fits) * len(accepted)} answers; drafted tokens accepted: {counts}: {found}")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
