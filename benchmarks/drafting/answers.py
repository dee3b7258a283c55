"""From answers to tables: rates by task, ratios to plain decoding and to peers, and the goals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from questions import TASKS
from report import Goal, table

OVERALL = "overall"
GOALS = {OVERALL: 1.3, "translation": 1.8}
NO_TASK_UNDER, NO_QUESTION_UNDER = 0.98, 0.93
DRAFTING = 0.05  # of a plain step's time, at most
SUMMED = ("steps", "drafted", "accepted", "draft_s", "verify_s")
FEWEST = 16  # tokens of an answer whose rate is worth comparing by itself


@dataclass(frozen=True)
class Answer:
    """One answer. form: of this runtime, or a peer's setting. beside: the peer that was measured in turns with it, or
    nothing where forms of this runtime were. tokens: after the first, which the seconds are for. turns: tokens per
    second each time that the question was answered, of which this answer was the fastest."""

    task: str
    question: int
    form: str
    tokens: int
    seconds: float
    ttft_ms: float
    speculation: dict[str, Any] | None = None
    beside: str = ""
    turns: list[float] = field(default_factory=list)


def rate(answers: Sequence[Answer]) -> float:
    """Tokens per second over all of them."""
    return sum(a.tokens for a in answers) / sum(a.seconds for a in answers)


def of(answers: Sequence[Answer], form: str, task: str = OVERALL, beside: str = "") -> list[Answer]:
    """Those of one form to one task, or to all."""
    return [a for a in answers if a.form == form and a.beside == beside and task in (a.task, OVERALL)]


def times_as_fast(own: Answer, plain: Answer) -> float:
    """How many times as fast a question was answered, in the median of the turns: the answers of a turn are given one
    right after the other, so that they see the same state of the machine."""
    if not own.turns or len(own.turns) != len(plain.turns):
        return rate([own]) / rate([plain])
    return median(ours / theirs for ours, theirs in zip(own.turns, plain.turns, strict=True))


def summary(answers: Sequence[Answer], forms: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each form and task, and for all tasks together; ratios are to the first form, over its questions. Rates
    are those of each question's fastest answer, single questions are compared by turns (`times_as_fast`)."""
    rows = []
    for form in forms:
        for task in [OVERALL, *TASKS]:
            own = of(answers, form, task)
            asked = {a.question for a in own}
            plain = [a for a in of(answers, forms[0], task) if a.question in asked]
            if not plain:
                continue
            by = {a.question: a for a in plain if a.tokens >= FEWEST}
            compared = [a for a in own if a.tokens >= FEWEST and a.question in by]
            each = {a.question: times_as_fast(a, by[a.question]) for a in compared}
            worst = min(each, key=lambda question: each[question], default=None)
            row: dict[str, Any] = {"form": form, "task": task, "questions": len(own), "tokens_per_s": rate(own)}
            row |= {"ratio": rate(own) / rate(plain), "worst": None if worst is None else each[worst]}
            row |= {"worst_question": worst, "median_ttft_ms": median(a.ttft_ms for a in own)}
            did = [a.speculation for a in own if a.speculation is not None]
            if did:
                sums = {key: sum(d[key] for d in did) for key in SUMMED}
                row |= sums | {"accepted_per_step": sums["accepted"] / max(1, sums["steps"])}
                row["draft_ms_per_step"] = 1e3 * sums["draft_s"] / max(1, sums["steps"])
            rows.append(row)
    return rows


def forms_table(rows: Sequence[dict[str, Any]]) -> str:
    """`summary` for people."""
    lines = [["form", "task", "questions", "tokens/s", "ratio", "worst question", "held a step", "draft, ms a step"]]
    for row in rows:
        worst = "" if row["worst"] is None else f"{row['worst']:.2f}"
        did = [f"{row['accepted_per_step']:.2f}", f"{row['draft_ms_per_step']:.3f}"] if "steps" in row else ["", ""]
        shown = [f"{row['questions']}", f"{row['tokens_per_s']:.1f}", f"{row['ratio']:.2f}", worst, *did]
        lines.append([row["form"], row["task"], *shown])
    return table(lines)


def form_goals(rows: Sequence[dict[str, Any]], form: str) -> list[Goal]:
    """What this project promises of drafts against plain decoding."""
    own = {row["task"]: row for row in rows if row["form"] == form}
    found = [Goal(f"{form}, {task}", own[task]["ratio"], limit, True) for task, limit in GOALS.items() if task in own]
    tasks = [row for task, row in own.items() if task != OVERALL]
    if tasks:
        least = min(tasks, key=lambda row: row["ratio"])
        found.append(Goal(f"{form}, least task ({least['task']})", least["ratio"], NO_TASK_UNDER, True))
        worst = own[OVERALL]
        if worst["worst"] is not None:
            what = f"{form}, worst question ({worst['worst_question']})"
            found.append(Goal(what, worst["worst"], NO_QUESTION_UNDER, True))
    if "draft_ms_per_step" in own.get(OVERALL, {}):
        every = own[OVERALL]
        plain_ms = 1e3 * every["ratio"] / every["tokens_per_s"]  # of a step of one token
        found.append(Goal(f"{form}, drafting / a plain step", every["draft_ms_per_step"] / plain_ms, DRAFTING, False))
    return found


def against(answers: Sequence[Answer], ours: str) -> list[dict[str, Any]]:
    """A row for each setting of a peer and task: its tokens per second, those of ours beside it, and the ratio."""
    rows = []
    for peer in dict.fromkeys(a.beside for a in answers if a.beside):
        for setting in dict.fromkeys(a.form for a in answers if a.beside == peer and a.form != ours):
            for task in [OVERALL, *TASKS]:
                theirs = of(answers, setting, task, peer)
                asked = {a.question for a in theirs}
                own = [a for a in of(answers, ours, task, peer) if a.question in asked]
                if own:
                    row = {"peer": peer, "setting": setting, "task": task, "questions": len(own)}
                    row |= {"ours": rate(own), "theirs": rate(theirs), "ratio": rate(own) / rate(theirs)}
                    rows.append(row)
    return rows


def peers_table(rows: Sequence[dict[str, Any]], ours: str) -> str:
    """`against` for people."""
    lines = [["peer", "its setting", "task", "questions", f"{ours}, tokens/s", "peer, tokens/s", "ratio"]]
    for row in rows:
        shown = [f"{row['questions']}", f"{row['ours']:.1f}", f"{row['theirs']:.1f}", f"{row['ratio']:.2f}"]
        lines.append([row["peer"], row["setting"], row["task"], *shown])
    return table(lines)


def peer_goals(rows: Sequence[dict[str, Any]]) -> list[Goal]:
    """Ahead on every task."""
    tasks = [row for row in rows if row["task"] != OVERALL]
    return [Goal(f"{row['task']} / {row['peer']}, {row['setting']}", row["ratio"], 1.0, True) for row in tasks]
