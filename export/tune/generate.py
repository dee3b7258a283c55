"""A model's own answers as training text: to tune a model towards what it says, nothing from outside is needed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edge.errors import InputError
from edge.export.drafts.prompts import PREVIOUS
from edge.export.facts.progress import Progress
from edge.export.tune.data import Row, read_rows
from edge.runtime.decode.answer import ANSWER_TOKENS
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.decode.sampling import UNSHAPED
from edge.runtime.load import load
from edge.runtime.model import Model
from edge.text_file import lines_of, read_text

BUNDLE = "answers.edge"
BLOCK = 64  # prompts whose answers are kept together: an interrupted run loses no more
TOP_P = 0.95  # what is drawn far out in the tail leads small models astray


def read_prompts(path: Path) -> list[Row]:
    """The prompts of a file: of JSONL lines with `prompt`, or with `text` that is to be continued; or lines of text.

    Raises:
        InputError: it cannot be read, or holds none.
    """
    if path.suffix == ".jsonl":
        rows = read_rows(path)
    else:
        rows = [Row(prompt=line.strip()) for line in lines_of(read_text(path)) if line.strip()]
    if not rows:
        raise InputError(f"{path} holds no prompts; write one a line, or JSONL lines with a prompt or a text.")
    if rows[0].prompt is not None and PREVIOUS in rows[0].prompt:
        raise InputError(f"The first prompt of {path} asks for {PREVIOUS}, and there is none before it.")
    return rows


def drawn(tokens: int, temperature: float, seed: int) -> GenerateOptions:
    """Return sampling options for an answer of up to `tokens` tokens, independent of the makers' settings."""
    shaped = {"temperature": temperature, "top_p": TOP_P if temperature > 0 else 1.0, "seed": seed}
    return GenerateOptions(max_tokens=tokens, think=False, **UNSHAPED | shaped)


def answer_all(
    source: str, prompts: list[Row], out: Path, options: GenerateOptions, *, progress: Progress, threads: int | None
) -> None:
    """Write the model's answers to `prompts` into the JSONL file `out`; `options` are the first one's.

    What the file holds already, of an interrupted run, stays: each answer is drawn with a seed of its own. The model
    answers from a bundle in 8 bits, which the runtime runs faster than Torch runs the checkpoint.
    """
    lines = _whole_lines(out)
    if len(lines) >= len(prompts):
        return
    bundle = exported(
        source, out.with_name(BUNDLE), progress, weights="int8", max_context=4 * (options.max_tokens or ANSWER_TOKENS)
    )
    model = load(bundle, threads=threads, speculate="off")
    if not isinstance(model, Model):
        raise InputError(f"{source} is no decoder that answers prompts, so it has no answers to be tuned on.")
    previous = str(json.loads(lines[-1]).get("answer", "")) if lines else ""
    with out.open("a", encoding="utf-8") as file:
        for at in range(len(lines), len(prompts), BLOCK):

            def told(done: int, at: int = at) -> None:
                progress(at + done, len(prompts), "answering prompts")

            told(0)
            rows = _answered(model, prompts[at : at + BLOCK], previous, _later(options, at), told)
            previous = str(rows[-1].get("answer", ""))
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            file.flush()


def _whole_lines(path: Path) -> list[str]:
    """The file's lines, from which one that was not written to its end is taken away."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        path.write_bytes(whole)
    return whole.decode().split("\n")[:-1]


def exported(source: str | Path, path: Path, progress: Progress, **options: Any) -> Path:
    """A bundle for this run alone, which an interrupted run may have made: neither checked nor ready for drafts."""
    if not path.exists():
        import edge.export

        bare: dict[str, Any] = {"check": False, "candidates": False, "draft_text": 0}
        edge.export(source, path, progress=progress, **bare | options)
    return path


def _later(options: GenerateOptions, by: int) -> GenerateOptions:
    """Return the options of the answer that is `by` rows later."""
    return dataclasses.replace(options, seed=int(options.seed or 0) + by)


def _answered(
    model: Model, rows: Sequence[Row], previous: str, first: GenerateOptions, told: Callable[[int], None]
) -> list[dict[str, Any]]:
    """Rows with the model's answers, those that wait for no other's together.

    previous: the answer to the row before the first. first: how the first one is drawn, the others with the seeds that
    follow. told: how many are done.
    """
    options = [_later(first, i) for i in range(len(rows))]
    found: dict[int, dict[str, Any]] = {}

    def prompt(i: int) -> str | None:
        """Return the prompt of a row; None while it waits for the previous answer."""
        asked = rows[i].prompt
        if asked is None or PREVIOUS not in asked:
            return asked or rows[i].text
        before = previous if i == 0 else None if i - 1 not in found else str(found[i - 1].get("answer", ""))
        return None if before is None else asked.replace(PREVIOUS, before)

    while len(found) < len(rows):
        ready = {i: asked for i in range(len(rows)) if i not in found and (asked := prompt(i)) is not None}
        for raw in (False, True):
            own = [i for i in ready if (rows[i].prompt is None) is raw]
            for place, answer in model.answers([ready[i] for i in own], [options[i] for i in own], raw=raw):
                i, asked = own[place], ready[own[place]]
                found[i] = {"text": asked + answer.text} if raw else {"prompt": asked, "answer": answer.text}
                told(len(found))
    return [found[i] for i in range(len(rows))]
