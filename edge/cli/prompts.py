"""`edge run -f FILE --output OUT` with a decoder: a file of prompts, one a line, answered side by side."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from typing import TYPE_CHECKING

from edge.cli.lines import Kept, identity, report, tell_stopped, tell_taken_up
from edge.cli.progress import bar
from edge.cli.run import INTERRUPTED, CtrlC
from edge.cli.text2text import CUT, OUTPUT_OF_LINES, Answer, on_one_line
from edge.errors import InputError
from edge.text_file import lines_of

if TYPE_CHECKING:
    from edge.runtime.answer import GenerateOptions, Result
    from edge.runtime.model import Model

SHAPING = ("system", "raw", "kv", "speculate", "prefill_chunk")  # can change an answer, as those of edge.cli.lines


def check_prompts(args: argparse.Namespace) -> None:
    """Raise InputError where options of a file of prompts and others do not go together."""
    if args.batch is not None and args.output is None:
        raise InputError("--batch says how many lines of a file are answered side by side; give -f FILE and --output.")
    if args.batch is not None and args.batch < 1:
        raise InputError(f"--batch must be 1 or more, not {args.batch}.")
    if args.output is not None and args.file is None:
        raise InputError(OUTPUT_OF_LINES)


def run_prompts(model: Model, text: str, options: GenerateOptions, args: argparse.Namespace, interrupted: CtrlC) -> int:
    """Answer each line of `text` as a prompt of its own into the file that `--output` names; blank ones stay blank.
    Returns the exit status.

    Raises:
        InputError: a line that the model cannot take, before anything is answered; or the file cannot be written.
    """
    from edge.runtime.answer import check_room

    model.check_width(args.batch)
    lines = lines_of(text)
    asked = [i for i, line in enumerate(lines) if line.strip()]
    for i in asked:
        try:
            check_room(len(model.prompt_ids(lines[i], system=args.system, raw=args.raw)), model.engine, "shorten it")
        except InputError as e:
            raise InputError(f"Line {i + 1} of {args.file}: {e}") from None
    # How many are side by side changes no answer, but what a memory budget has room for.
    shaping = (*SHAPING, "batch") if args.memory is not None else SHAPING
    begun, done = time.monotonic(), list[Answer]()
    with Kept(args.output, identity(model.bundle, options, args, *shaping), lines) as kept:
        waiting = [i for i in asked if i not in kept.answers]
        if len(waiting) < len(asked):
            tell_taken_up(kept)
        prompts = [lines[i] for i in waiting]
        answers = model.answers(prompts, options, system=args.system, raw=args.raw, width=args.batch)
        with bar("Prompts", len(waiting)) as advance:
            for place, result in answers:
                if result.finish_reason == "interrupted":
                    break
                kept.add(waiting[place], _shown(result, args.json))
                advance(1)
                done.append(Answer("", result.generated_tokens, result.finish_reason in CUT))
        seconds = time.monotonic() - begun
        stopped = len(kept.answers) < len(asked)
        if not stopped:
            kept.finish()
    report(done, seconds)
    if stopped:
        tell_stopped(kept, len(asked))
    return INTERRUPTED if stopped else 0


def _shown(result: Result, as_json: bool) -> str:
    return json.dumps(dataclasses.asdict(result), ensure_ascii=False) if as_json else on_one_line(result.text)
