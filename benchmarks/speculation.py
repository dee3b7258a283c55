"""Speculative decoding beside plain decoding, over Spec-Bench's questions. docs/speculation.md says more.

    python benchmarks/speculation.py --bundle smollm2-135m-instruct.edge --questions spec_bench.jsonl

Each question is answered by every form in turn, on one engine, so that all see the same state of the machine; figures
are tokens per second after the first token. `--check` compares texts instead: reproducible answers with and without
drafts.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import IO, Any

from processes import Worker

PLAIN = "off"
TASKS = ("translation", "summarization", "qa", "math_reasoning", "rag")
PEERS = ("genai", "llamacpp")
CHAT = "chat"  # MT-Bench: eight categories in the file
GOALS = {"overall": 1.3, "translation": 1.8}
NO_TASK_UNDER, NO_QUESTION_UNDER = 0.98, 0.93
SUMMED = ("steps", "drafted", "accepted", "draft_s", "verify_s")
DRAFTS = 64
SPINS = 0.1  # of a core, between two answers
FEWEST = 16  # tokens of an answer whose rate is worth comparing by itself


@dataclasses.dataclass
class Answer:
    """One answer of one form."""

    task: str
    question: int
    form: str
    tokens: int  # after the first
    seconds: float
    ttft_ms: float
    speculation: dict[str, Any] | None


def main() -> int:
    """Measure, print, write. Returns the exit status."""
    args = parse(sys.argv[1:])
    asked = list(chosen(read(args.questions), args.skip, args.count))
    if args.check:
        return check(args, asked)
    answers = list(measure(args, asked))
    rows = summary(answers, args.forms)
    args.out.mkdir(parents=True, exist_ok=True)
    written = {"bundle": args.bundle.name, "temperature": args.temperature, "tokens": args.tokens, "rows": rows}
    written["answers"] = [dataclasses.asdict(answer) for answer in answers]
    (args.out / "speculation.json").write_text(json.dumps(written, indent=1) + "\n")
    show(rows, args)
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--questions", type=Path, required=True, help="Spec-Bench's question.jsonl")
    forms = "compared with plain decoding: auto, drafters, lookup:K for always K tokens, auto@W for narrower steps; "
    forms += "of peers genai or llamacpp for plain decoding, genai:N,K or llamacpp:N,K for K tokens behind N-grams"
    parser.add_argument("--forms", default="auto", help=f"{forms}; several between blanks; default: auto")
    parser.add_argument("--count", type=int, help="questions of each task; default: 20, with --quick 3")
    parser.add_argument("--skip", type=int, default=0, help="questions of each task to leave out first")
    parser.add_argument("--tokens", type=int, help="most tokens of an answer; default: 200, with --quick 80")
    parser.add_argument("--context", type=int, default=2048, help="longer prompts are left out")
    parser.add_argument("--repeats", type=int, default=1, help="answers of each form to a question; the fastest counts")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--genai", type=Path, help="the model as onnxruntime-genai's builder writes it")
    parser.add_argument("--gguf", type=Path, help="the model as llama.cpp reads it")
    parser.add_argument("--peer-python", default=sys.executable, help="the interpreter that has the peers")
    parser.add_argument("--check", action="store_true", help="compare reproducible texts with and without drafts")
    parser.add_argument("--quick", action="store_true", help="fewer questions and tokens: a minute, less certain")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"), help="folder for the JSON")
    args = parser.parse_args(arguments)
    args.count = args.count or (3 if args.quick else 20)
    args.tokens = args.tokens or (80 if args.quick else 200)
    args.forms = [PLAIN, *args.forms.split()]
    return args


def read(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Questions by task."""
    tasks: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines():
        question = json.loads(line)
        tasks[question["category"] if question["category"] in TASKS else CHAT].append(question)
    return tasks


def chosen(tasks: dict[str, list[dict[str, Any]]], skip: int, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Questions with their tasks, all tasks in turns."""
    for number in range(skip, skip + count):
        for task, questions in tasks.items():
            if number < len(questions):
                yield task, questions[number]


def models(args: argparse.Namespace, reproducible: bool = False) -> dict[str, Any]:
    """A model for each form, all over one engine."""
    import edge
    from edge.runtime.engine import Engine
    from edge.runtime.model import Model
    from edge.runtime.text import Text

    bundle = edge.open_bundle(args.bundle)
    engine = Engine(bundle, context=args.context, threads=args.threads, reproducible=reproducible)
    text, made = Text(bundle), {}
    for form in (form for form in args.forms if form.partition(":")[0] not in PEERS):
        name, length, width = re.fullmatch(r"(.+?)(?::(\d+))?(?:@(\d+))?", form).groups()
        made[form] = Model(bundle, engine, text, speculate=name)
        if length:
            fix(made[form].speculation.planner, int(length))
        if width:
            narrow(made[form].speculation, int(width))
    return made


def fix(planner: Any, length: int) -> None:
    """Run every draft, up to `length` tokens: what a setting would do."""
    planner.cut = lambda draft: dataclasses.replace(draft, tokens=draft.tokens[:length], grades=draft.grades[:length])


def narrow(speculation: Any, width: int) -> None:
    """Let no step have more than `width` tokens, as under a memory budget."""
    from edge.runtime.speculate.planner import Planner, StepCosts

    old, drafter = speculation.planner, speculation.drafter
    costs = StepCosts(old.costs._curve_of, width)
    speculation.planner = Planner(drafter.priors, costs, width, trees=old._trees, cost=drafter.cost)


def fitting(
    args: argparse.Namespace, model: Any, asked: Iterable[tuple[str, dict[str, Any]]]
) -> list[tuple[str, int, str]]:
    """Task, number and first turn of the questions whose prompts leave room for an answer."""
    found = [(task, question["question_id"], question["turns"][0]) for task, question in asked]
    return [each for each in found if len(model.prompt_ids(each[2])) + args.tokens <= args.context]


def peers(args: argparse.Namespace, threads: int, log: IO[str]) -> dict[str, Worker]:
    """A process for each form of a peer."""
    made = {}
    for form in args.forms:
        name, _, setting = form.partition(":")
        if name in PEERS:
            model = {"genai": args.genai, "llamacpp": args.gguf}[name]
            if model is None:
                raise SystemExit(f"speculation: {form} needs --{'genai' if name == 'genai' else 'gguf'}.")
            settings = dict(zip(("ngram", "drafts"), map(int, setting.split(",")), strict=True)) if setting else {}
            capacity = args.context + DRAFTS  # llama-cpp-python drafts beyond the answer's end
            request = {"model": str(model), "threads": threads, "capacity": capacity, "settings": settings}
            made[form] = Worker(args.peer_python, f"drafting.{name}", log, request)
    return made


def measure(args: argparse.Namespace, asked: list[tuple[str, dict[str, Any]]]) -> Iterator[Answer]:
    """Every form's answer to every question."""
    import edge

    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "speculation.log").open("w") as log:
        forms = models(args)
        for model in forms.values():
            model.generate("Say hello, and hello again.", edge.GenerateOptions(max_tokens=24))
        plain = forms[PLAIN]
        workers, ends = peers(args, plain.engine.threads, log), sorted(plain.text.eos)
        for number, (task, question, prompt) in enumerate(fitting(args, plain, asked)):
            ids, best = plain.prompt_ids(prompt), dict[str, Answer]()
            options = edge.GenerateOptions(max_tokens=args.tokens, temperature=args.temperature, seed=number)
            for turn in range(number, number + args.repeats):
                for form in args.forms if turn % 2 else args.forms[::-1]:
                    if form in workers:
                        got = workers[form].ask("answer", ids=ids, n=args.tokens, ends=ends)
                        tokens, seconds, ttft, did = got["tokens"], got["decode_s"], 1e3 * got["prefill_s"], None
                    else:
                        result = forms[form].generate(prompt, options)
                        tokens, ttft, did = result.generated_tokens - 1, result.ttft_ms, result.speculation
                        seconds = tokens / (result.decode_tokens_per_s or 1)
                    answer = Answer(task, question, form, tokens, seconds, ttft, did)
                    if tokens and (form not in best or tokens / seconds > best[form].tokens / best[form].seconds):
                        best[form] = answer
            yield from best.values()
        for form, worker in workers.items():
            if worker.idle_share > SPINS:
                print(f"{form} used {worker.idle_share:.0%} of a core between its answers: all figures of this run are "
                      "spoilt; measure it in a run of its own.", file=sys.stderr)
            worker.close()


def summary(answers: list[Answer], forms: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each form and task, and for all tasks together."""
    rows = []
    for form in forms:
        for task in ["overall", CHAT, *TASKS]:
            own, plain = ([a for a in answers if a.form == f and task in (a.task, "overall")] for f in (form, PLAIN))
            if not own:
                continue
            rate, base = rates(own), rates(plain)
            by = {a.question: a.tokens / a.seconds for a in plain if a.tokens >= FEWEST}
            compared = [a for a in own if a.tokens >= FEWEST and a.question in by]
            each = {a.question: a.tokens / a.seconds / by[a.question] for a in compared}
            worst = min(each, key=lambda question: each[question], default=None)
            row: dict[str, Any] = {"form": form, "task": task, "questions": len(own), "tokens_per_s": rate}
            row |= {"ratio": rate / base, "worst": None if worst is None else each[worst], "worst_question": worst}
            row["median_ttft_ms"] = median(a.ttft_ms for a in own)
            did = [a.speculation for a in own if a.speculation is not None]
            if did:
                sums = {key: sum(d[key] for d in did) for key in SUMMED}
                row |= sums | {"accepted_per_step": sums["accepted"] / max(1, sums["steps"])}
                row["draft_ms_per_step"] = 1e3 * sums["draft_s"] / max(1, sums["steps"])
            rows.append(row)
    return rows


def rates(answers: list[Answer]) -> float:
    """Tokens per second over all of them."""
    return sum(a.tokens for a in answers) / sum(a.seconds for a in answers)


def show(rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """The table, and whether the goals are met."""
    what = "greedy" if args.temperature == 0 else f"temperature {args.temperature}"
    print(f"{args.bundle.name}, {what}, up to {args.tokens} tokens")
    print(f"{'form':12} {'task':15} {'n':>3} {'tok/s':>7} {'ratio':>6} {'worst':>6} {'acc/step':>8} {'draft ms':>8}")
    for row in rows:
        worst = "" if row["worst"] is None else f"{row['worst']:.2f}"
        extra = f"{row['accepted_per_step']:8.2f} {row['draft_ms_per_step']:8.3f}" if "steps" in row else ""
        print(
            f"{row['form']:12} {row['task']:15} {row['questions']:3} {row['tokens_per_s']:7.1f} {row['ratio']:6.2f} "
            f"{worst:>6} {extra}"
        )
    for form in args.forms[1:]:
        own = {row["task"]: row for row in rows if row["form"] == form}
        known = [task for task in GOALS if task in own]
        goals = [(f"{task} {own[task]['ratio']:.2f}", own[task]["ratio"], GOALS[task]) for task in known]
        least = min((row for task, row in own.items() if task != "overall"), key=lambda row: row["ratio"])
        goals.append((f"least task, {least['task']}, {least['ratio']:.2f}", least["ratio"], NO_TASK_UNDER))
        worst = own["overall"]["worst"]
        if worst is not None:
            goals.append((f"worst question {worst:.2f}", worst, NO_QUESTION_UNDER))
        met = (f"{name} ({'reached' if value >= goal else 'missed'}: {goal})" for name, value, goal in goals)
        print(f"{form}: " + ", ".join(met))


def check(args: argparse.Namespace, asked: list[tuple[str, dict[str, Any]]]) -> int:
    """Compare reproducible answers with those without drafts, token for token; the status is 1 where one differs."""
    import edge

    forms = models(args, reproducible=True)
    options, began = edge.GenerateOptions(max_tokens=args.tokens), time.monotonic()
    compared, accepted, differing = 0, 0, []
    for _, question, prompt in fitting(args, forms[PLAIN], asked):
        wanted = forms[PLAIN].generate(prompt, options).token_ids
        for form in args.forms[1:]:
            result = forms[form].generate(prompt, options)
            compared += 1
            accepted += result.speculation["accepted"]
            if result.token_ids != wanted:
                differing.append((form, question))
    found = f"{len(differing)} differ: {differing}" if differing else "none differs"
    print(f"{compared} answers, {accepted} of their tokens drafted, {time.monotonic() - began:.0f} s: {found}")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
