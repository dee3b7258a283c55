"""`edge run --lines FILE`: the answers to a file's lines, printed, or written to a file, which a stop does not lose."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import json
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.cli.arguments import taken
from edge.cli.ending import INTERRUPTED
from edge.cli.progress import bar
from edge.cli.run.answer_output import AnswerOutput
from edge.cli.run.line_answers import Answer, Answers, Line
from edge.cli.run.terminal import peak_memory
from edge.errors import InputError
from edge.runtime.load_options import LoadOptions

if TYPE_CHECKING:
    from edge.bundle import Bundle
    from edge.cluster.lines import Job
    from edge.runtime.decode.answer import Result
    from edge.runtime.decode.beam import Candidate
    from edge.runtime.decode.generate_options import GenerateOptions
    from edge.runtime.decode.text2text_options import Text2TextOptions
    from edge.runtime.loaded import Loaded
    from edge.runtime.model import Model
    from edge.runtime.text2text import Text2Text

FOR_SPEED = {"threads", "provider", "strict", "skip_anyway", "when_full", "beams"}  # which change no answer here
AHEAD = 2  # lines for each thread that are begun before the first one's answer is taken
FORM = 2  # of what is kept of each answer: another one is not mixed in
CUT = ("length", "context")  # why an answer that might go on ended

_BREAKS = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029\\]")  # what ends a line for somebody, and backslashes


def run_lines(
    model: Text2Text,
    lines: Sequence[str],
    options: Text2TextOptions,
    args: argparse.Namespace,
    at_a_time: int,
    job: Job | None = None,
) -> int:
    """Answer each line, several at a time; blank ones are not. Returns the exit status.

    Into a file the longest go first, and their answers come into their places in the end; otherwise each is printed
    as soon as those before it are. job: the cluster that answers in the model's stead.

    Raises:
        InputError: a line that the model cannot take, before anything is done; or the output file cannot be written.
    """
    lengths = _lengths(lines, args.lines, lambda line: len(model.prompt_ids(line, options)))
    order = list(lengths) if args.output is None else sorted(lengths, key=lambda i: -lengths[i])
    work = partial(line_answers, options=options, as_json=bool(args.json), at_a_time=at_a_time)
    blank = partial(_blank, candidates=options.n_best > 1) if args.json else None
    output = AnswerOutput(args.output, identity(model.bundle, options, args), lines, blank)
    return _fill(output, order, _maker(model, lines, work, job))


def run_prompts(
    model: Model,
    lines: Sequence[str],
    options: GenerateOptions,
    args: argparse.Namespace,
    job: Job | None = None,
) -> int:
    """Answer each line as a prompt of its own, several at a time; blank ones are not. Returns the exit status.

    job: the cluster that answers in the model's stead.

    Raises:
        InputError: a line that the model cannot take, before anything is answered; or the file cannot be written.
    """
    from edge.runtime.decode.answer import check_prompt

    model.check_width(args.batch)

    def length(line: str) -> int:
        tokens = model.prompt_ids(line, system=args.system, raw=args.raw, think=options.think, effort=options.effort)
        check_prompt(tokens, model.engine, "shorten it")
        return len(tokens)

    order = list(_lengths(lines, args.lines, length))
    raw, as_json = bool(args.raw), bool(args.json)
    work = partial(prompt_answers, options=options, system=args.system, raw=raw, width=args.batch, as_json=as_json)
    # How many are side by side changes no answer, but what a memory budget has room for.
    also = ["system", "raw", *([] if args.memory is None else ["batch"])]
    blank = _blank if args.json else None
    output = AnswerOutput(args.output, identity(model.bundle, options, args, *also), lines, blank)
    return _fill(output, order, _maker(model, lines, work, job))


def line_answers(
    model: Text2Text, lines: Sequence[Line], *, options: Text2TextOptions, as_json: bool, at_a_time: int
) -> Answers:
    """The answers to lines, several at a time, in their order; they end early where they are interrupted."""
    texts = dict(lines)
    made = side_by_side(lambda i: answer_line(model, i, texts[i], options, as_json), texts, at_a_time)
    with contextlib.closing(made):
        for place, one in made:
            if options.interrupted():
                return
            yield place, one


def prompt_answers(
    model: Model,
    lines: Sequence[Line],
    *,
    options: GenerateOptions,
    system: str | None,
    raw: bool,
    width: int | None,
    as_json: bool,
) -> Answers:
    """The answers to lines as prompts, as they are done; they end early where they are interrupted."""
    prompts = [line for _, line in lines]
    for i, result in model.answers(prompts, options, system=system, raw=raw, width=width):
        if result.finish_reason == "interrupted":
            return
        place, line = lines[i]
        yield place, _line_of(place, line, [result], as_json)


def _maker(
    model: Loaded, lines: Sequence[str], work: partial[Answers], job: Job | None
) -> Callable[[Sequence[int]], Answers]:
    """The function that answers the lines at some places: with this model, or with those of a cluster's nodes."""

    def make(waiting: Sequence[int]) -> Answers:
        asked = [(i, lines[i]) for i in waiting]
        if job is None:
            return work(model, asked)
        from edge.cli.run.on_cluster import spread

        return spread(job, model, asked, work)

    return make


def _lengths(lines: Sequence[str], file: Path, length: Callable[[str], int]) -> dict[int, int]:
    """The number of tokens of each line that is not blank, by its place."""
    lengths = {}
    for i, line in enumerate(lines):
        if line.strip():
            try:
                lengths[i] = length(line)
            except InputError as e:
                raise InputError(f"Line {i + 1} of {file}: {e}") from None
    return lengths


def _fill(kept: AnswerOutput, order: Sequence[int], make: Callable[[Sequence[int]], Answers]) -> int:
    """Keep the answers to the lines at these places, those left out that an earlier command kept; returns the exit
    status. make: the answers, as they are done, which end early where they are interrupted."""
    begun, made = time.monotonic(), list[Answer]()
    with kept:
        waiting = [i for i in order if i not in kept.answers]
        if kept.answers:
            done = f"{len(kept.answers)} lines were done already, in {kept.path}; going on with the others."
            print(done, file=sys.stderr)
        quiet = kept.path is None and sys.stdout.isatty()  # answers and a bar would be drawn over each other
        shown = contextlib.nullcontext(_ignore) if quiet else bar("Lines", len(waiting))
        try:
            with shown as advance, contextlib.closing(make(waiting)) as answers:
                for place, one in answers:
                    kept.add(place, one.shown)
                    advance(1)
                    made.append(one)
        except KeyboardInterrupt:  # Ctrl-C once more, or SIGTERM
            kept.tell_stopped()
            raise
        seconds = time.monotonic() - begun
        stopped = len(made) < len(waiting)
        if not stopped:
            kept.finish()
    _report(made, seconds)
    if stopped:
        kept.tell_stopped()
    return INTERRUPTED if stopped else 0


def side_by_side(make: Callable[[int], Answer], places: Iterable[int], at_a_time: int) -> Answers:
    """Call `make` for each place in several threads; yield the results in the order of the places."""
    if at_a_time == 1:
        yield from ((place, make(place)) for place in places)
        return
    pending = deque[tuple[int, Future[Answer]]]()
    with ThreadPoolExecutor(at_a_time) as pool:
        try:
            for place in places:
                pending.append((place, pool.submit(make, place)))
                if len(pending) > AHEAD * at_a_time:
                    first, future = pending.popleft()
                    yield first, future.result()
            for place, future in pending:
                yield place, future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _ignore(step: float) -> None:
    pass


def answer_line(
    model: Text2Text, place: int, line: str, options: Text2TextOptions, as_json: bool, *, numbered: bool = True
) -> Answer:
    """Answer the line at a place; a blank one is not.

    numbered: whether the n best texts of a line stand after its number.
    """
    several = options.n_best > 1
    if not line.strip():
        return Answer(_blank(place, line, candidates=several) if as_json else "")
    if not several:
        return _line_of(place, line, [model.generate(line, options)], as_json)
    found = model.candidates(line, options)
    if as_json:
        return _line_of(place, line, found, as_json, candidates=True)
    before = f"{place + 1}\t" if numbered else ""
    shown = "\n".join(before + each for each in scored(found).split("\n"))
    return _line_of(place, line, found, as_json)._replace(shown=shown)


def scored(candidates: Sequence[Candidate]) -> str:
    """The n best texts, each on a line of its own after its score."""
    return "\n".join(f"{each.score:.4f}\t{_on_one_line(each.text)}" for each in candidates)


def _line_of(
    place: int, line: str, found: Sequence[Result | Candidate], as_json: bool, *, candidates: bool = False
) -> Answer:
    """The answer to the line at a place, the best first; as JSON it says which line that is."""
    best = found[0]
    shown = _on_one_line(best.text)
    if as_json:
        fields = [dataclasses.asdict(each) for each in found]
        shown = _object(place, line, {"candidates": fields} if candidates else fields[0])
    return Answer(shown, len(best.token_ids), best.finish_reason in CUT)


def _blank(place: int, line: str, *, candidates: bool = False) -> str:
    """The object of a blank line: as of an answer of no tokens."""
    from edge.runtime.decode.answer import Result

    if candidates:
        return _object(place, line, {"candidates": []})
    nothing = {each.name: None for each in dataclasses.fields(Result)}
    counts = {"text": "", "token_ids": [], "prompt_tokens": 0, "generated_tokens": 0}
    return _object(place, line, nothing | counts)


def _object(place: int, line: str, fields: dict[str, Any]) -> str:
    return json.dumps({"line": place + 1, "prompt": line} | fields, ensure_ascii=False)


def _on_one_line(text: str) -> str:
    """A text that shares its place with others begins no line of its own: line breaks are written as escapes, and so
    are backslashes, so that it can be read back."""
    return _BREAKS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def identity(bundle: Bundle, options: Text2TextOptions | GenerateOptions, args: argparse.Namespace, *also: str) -> str:
    """Equal for two commands that give the same answers: of the same bundle and options, and with the same arguments
    `also`. Options for speed alone, such as --threads, may differ."""
    shaping = {k: v for k, v in dataclasses.asdict(options).items() if k != "interrupted"}
    given = taken(args, LoadOptions) | {name: getattr(args, name) for name in ("json", *also)}
    what = [FORM, bundle.manifest.to_json(), shaping, {k: v for k, v in given.items() if k not in FOR_SPEED}]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def _report(done: Sequence[Answer], seconds: float) -> None:
    """One line of figures on standard error."""
    cut = sum(one.cut for one in done)
    parts = [
        f"{len(done):,} lines",
        f"{sum(one.tokens for one in done):,} tokens",
        f"{len(done) / max(seconds, 1e-6):,.1f} lines/s",
        peak_memory(),
        *([f"{cut:,} cut off by --max-tokens or the context"] if cut else []),
    ]
    print(*parts, sep=" · ", file=sys.stderr)
