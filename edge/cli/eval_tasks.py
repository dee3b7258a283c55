"""`edge eval --qa`, `--summarize`, `--translate`: how good answers are, under skip policies and drafts."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edge.bundle import Bundle
from edge.cli import scores
from edge.cli.answering import open_answering
from edge.cli.eval_skip import check_plot, figure_of, settings
from edge.cli.export import stages
from edge.cli.tables import console, print_json, table
from edge.errors import InputError
from edge.manifest import FLOAT32
from edge.runtime.choose import segments_policy
from edge.runtime.costs.measured import open_for
from edge.runtime.decode.answer import Result
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.decode.rules.circles import ALLOW
from edge.runtime.decode.text2text_options import Text2TextOptions
from edge.runtime.engine.variant import OFF, kv_dtypes, runs_whole
from edge.runtime.load import as_asked, load
from edge.runtime.load_options import LoadOptions
from edge.runtime.model import Model
from edge.runtime.providers.provider import Provider
from edge.runtime.speculate.drafter import chosen
from edge.runtime.text2text import Text2Text
from edge.text_file import lines_of, read_text


@dataclass(frozen=True)
class Task:
    """A kind of file: where a line holds what to answer and what the answer should be, and how answers are scored.

    instruction: stands before what a decoder is asked; an encoder-decoder takes the text alone.
    """

    name: str
    asked: str
    wanted: str
    instruction: str
    tokens: int  # maximum of an answer
    score: scores.Score


TASKS = {
    "qa": Task("qa", "question", "answer", "", 64, scores.question_answering),
    "summarize": Task("summarize", "text", "summary", "Summarize: ", 160, scores.summarization),
    "translate": Task("translate", "source", "target", "Translate to English: ", 128, scores.translation),
}


@dataclass(frozen=True)
class Item:
    asked: str
    wanted: list[str]


@dataclass(frozen=True)
class TaskFigures:
    """Scores and speed of one setting on a file's lines, answered greedily."""

    skip: str
    speculate: str
    answers: int
    scores: dict[str, float]
    tokens: int  # of the answers
    tokens_per_s: float | None  # while decoding; None where no answer had two tokens


def run_task(args: argparse.Namespace, name: str) -> None:
    """Answer the lines of the file of a task with each setting and print a table or JSON. args: of `edge eval`."""
    check_plot(args.plot)
    task, file, skip, speculate = TASKS[name], getattr(args, name), args.skip, args.speculate or OFF
    for option, value in (("--limit", args.limit), ("--max-tokens", args.max_tokens)):
        if value is not None and value < 1:
            raise InputError(f"{option} must be 1 or more, not {value}.")
    if args.sweep is not None and skip is None:
        raise InputError("--sweep gives settings of a policy; name the policy with --skip.")
    task.score(["a b"], [["a b"]])  # what scoring needs is missed before anything is answered
    items = read_items(file, task)[: args.limit]
    skips = [OFF] if skip is None else [OFF, *([skip] if args.sweep is None else settings(skip, args.sweep))]
    bundle = open_answering(args.bundle)
    provider = open_for(bundle, args.provider, args.threads, args.strict)
    dtype = _check_settings(bundle, skips, speculate, args.kv, provider)
    found = []
    with stages() as (progress, _):
        for each in dict.fromkeys(skips):
            asked = LoadOptions(skip=each, skip_anyway=True, speculate=speculate, kv=dtype, provider=provider)
            answer = _answerer(bundle, asked, task, args.instruction, args.max_tokens)
            results = []
            for done, item in enumerate(items):
                progress(done, len(items), f"answering, --skip {each}")
                results.append(answer(item.asked))
            found.append(_figures(each, speculate, task, items, results))
    if args.json:
        about = {"model": str(args.bundle), "task": task.name, "file": str(file), "kv": dtype}
        print_json(about | {"settings": [asdict(each) for each in found]})
    else:
        _show(found, str(args.bundle) if args.kv is None else f"{args.bundle} (KV cache in {dtype})")
    if args.plot is not None:
        _draw(found, args.plot)


def read_items(path: Path, task: Task) -> list[Item]:
    """The lines of a JSONL file that hold what the task needs; `wanted` may be one text or a list of them.

    Raises:
        InputError: it cannot be read, a line is no JSON object, or none holds it.
    """
    items = []
    for number, line in enumerate(lines_of(read_text(path)), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        asked = row.get(task.asked) if isinstance(row, dict) else None
        wanted = row.get(task.wanted) if isinstance(row, dict) else None
        wanted = [wanted] if isinstance(wanted, str) else wanted
        if not isinstance(asked, str) or not asked.strip() or not _texts(wanted):
            raise InputError(
                f"Line {number} of {path} is no JSON object with a text under {task.asked!r} and one, or a list of "
                f"them, under {task.wanted!r}."
            )
        assert wanted is not None
        items.append(Item(asked, list(wanted)))
    if not items:
        raise InputError(f"{path} is empty; give a JSONL file with lines of {task.asked!r} and {task.wanted!r}.")
    return items


def _texts(wanted: Any) -> bool:
    return isinstance(wanted, list) and bool(wanted) and all(isinstance(text, str) for text in wanted)


def _check_settings(bundle: Bundle, skips: Sequence[str], speculate: str, kv: str | None, provider: Provider) -> str:
    """Return the dtype of the KV cache under all settings. All settings are checked before the first line is answered.

    Raises:
        InputError: there is no such policy, drafter or KV cache, or the bundle cannot have them together.
    """

    def runs(skip: str) -> bool:
        asked = as_asked(bundle, LoadOptions(skip=skip, speculate=speculate, provider=provider))
        return runs_whole(asked, segments_policy(asked, skip, chosen(speculate, asked)))

    return kv_dtypes(bundle, kv or FLOAT32, whole=all([runs(skip) for skip in skips]))[0]


def _answerer(
    bundle: Bundle, asked: LoadOptions, task: Task, instruction: str | None, max_tokens: int | None
) -> Callable[[str], Result]:
    model = load(bundle.root, asked)
    maximum = max_tokens or task.tokens
    if isinstance(model, Text2Text):
        if instruction is not None:
            raise InputError(f"{bundle.manifest.name} takes texts alone; --instruction is for decoders.")
        greedy = Text2TextOptions(max_tokens=maximum, beams=1, circles=ALLOW)  # whatever the bundle sets
        return lambda asked: model.generate(asked, greedy)
    if not isinstance(model, Model):
        raise InputError(f"{bundle.manifest.name} reads audio, so it cannot answer texts.")
    before = task.instruction if instruction is None else instruction
    options = GenerateOptions(max_tokens=maximum, temperature=0, think=False, circles=ALLOW)  # whatever the bundle sets
    return lambda asked: model.generate(before + asked, options)


def _figures(skip: str, speculate: str, task: Task, items: Sequence[Item], results: Sequence[Result]) -> TaskFigures:
    timed = [(r.generated_tokens - 1, r.decode_tokens_per_s) for r in results if r.decode_tokens_per_s]
    spent = sum(tokens / speed for tokens, speed in timed)
    return TaskFigures(
        skip=skip,
        speculate=speculate,
        answers=len(results),
        scores=task.score([result.text.strip() for result in results], [item.wanted for item in items]),
        tokens=sum(result.generated_tokens for result in results),
        tokens_per_s=sum(tokens for tokens, _ in timed) / spent if spent else None,
    )


def _show(found: Sequence[TaskFigures], name: str) -> None:
    first = found[0]
    title = f"{name}: {first.answers:,} answers, --speculate {first.speculate}"
    names = [score.replace("_", " ") for score in first.scores]
    rows = table(title, "policy", *names, "tokens", "tokens/s", "speed", text=1, width=max(len(e.skip) for e in found))
    for each in found:
        scored = [f"{score:.2f}" for score in each.scores.values()]
        rate = "" if each.tokens_per_s is None else f"{each.tokens_per_s:.0f}"
        speed = _speed(each, first)
        rows.add_row(each.skip, *scored, f"{each.tokens:,}", rate, "" if speed is None else f"{speed:.2f}")
    console().print(rows)


def _speed(each: TaskFigures, first: TaskFigures) -> float | None:
    """Times the first setting's decode speed."""
    if each.tokens_per_s is None or not first.tokens_per_s:
        return None
    return each.tokens_per_s / first.tokens_per_s


def _draw(found: Sequence[TaskFigures], path: Path) -> None:
    """The task's last score against decode speed."""
    name = list(found[0].scores)[-1]
    points = [(each.skip, _speed(each, found[0]) or 0.0, each.scores[name]) for each in found]
    figure_of(points, name.replace("_", " "), path)
