"""`edge run --lines FILE`: the answers to a file's lines, printed, or written to a file, which a stop does not lose."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import re
import stat
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from edge.cli.arguments import taken
from edge.cli.ending import INTERRUPTED
from edge.cli.progress import bar
from edge.cli.reports import is_device, write_whole
from edge.cli.run.terminal import peak_memory
from edge.errors import InputError
from edge.home import for_owner
from edge.runtime.load_options import LoadOptions

if TYPE_CHECKING:
    from edge.bundle import Bundle
    from edge.runtime.decode.answer import Result
    from edge.runtime.decode.beam import Candidate
    from edge.runtime.decode.generate_options import GenerateOptions
    from edge.runtime.decode.text2text_options import Text2TextOptions
    from edge.runtime.model import Model
    from edge.runtime.text2text import Text2Text

FOR_SPEED = {"threads", "provider", "strict", "skip_anyway", "when_full", "beams"}  # which change no answer here
AHEAD = 2  # lines for each thread that are begun before the first one's answer is taken
FORM = 2  # of what is kept of each answer: another one is not mixed in
CUT = ("length", "context")  # why an answer that might go on ended
MOST_KEPT = 2 << 30  # bytes that are read of what an earlier command left


_BREAKS = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029\\]")  # what ends a line for somebody, and backslashes


class Answer(NamedTuple):
    """The whole answer to one text: as it is printed, without a line end after it; its number of tokens; and whether
    it ended because there may not be more."""

    shown: str
    tokens: int = 0
    cut: bool = False


Answers = Generator[tuple[int, Answer], None, None]
"""The place of each line, counted from 0, and the answer to it."""


def run_lines(
    model: Text2Text, lines: Sequence[str], options: Text2TextOptions, args: argparse.Namespace, at_a_time: int
) -> int:
    """Answer each line, several at a time; blank ones are not. Returns the exit status.

    Into a file the longest go first, and their answers come into their places in the end; otherwise each is printed
    as soon as those before it are.

    Raises:
        InputError: a line that the model cannot take, before anything is done; or the output file cannot be written.
    """
    lengths = _lengths(lines, args.lines, lambda line: len(model.prompt_ids(line, options)))
    order = list(lengths) if args.output is None else sorted(lengths, key=lambda i: -lengths[i])

    def make(waiting: Sequence[int]) -> Answers:
        made = side_by_side(lambda i: answer_line(model, i, lines[i], options, args.json), waiting, at_a_time)
        with contextlib.closing(made):
            for place, one in made:
                if options.interrupted():
                    return
                yield place, one

    blank = partial(_blank, candidates=options.n_best > 1) if args.json else None
    return _fill(AnswerOutput(args.output, identity(model.bundle, options, args), lines, blank), order, make)


def run_prompts(model: Model, lines: Sequence[str], options: GenerateOptions, args: argparse.Namespace) -> int:
    """Answer each line as a prompt of its own, several at a time; blank ones are not. Returns the exit status.

    Raises:
        InputError: a line that the model cannot take, before anything is answered; or the file cannot be written.
    """
    from edge.runtime.decode.answer import check_prompt

    model.check_width(args.batch)

    def length(line: str) -> int:
        tokens = model.prompt_ids(line, system=args.system, raw=args.raw, think=options.think)
        check_prompt(tokens, model.engine, "shorten it")
        return len(tokens)

    def make(waiting: Sequence[int]) -> Answers:
        prompts = [lines[i] for i in waiting]
        for place, result in model.answers(prompts, options, system=args.system, raw=args.raw, width=args.batch):
            if result.finish_reason == "interrupted":
                return
            yield waiting[place], _line_of(waiting[place], prompts[place], [result], args.json)

    order = list(_lengths(lines, args.lines, length))
    # How many are side by side changes no answer, but what a memory budget has room for.
    also = ["system", "raw", *([] if args.memory is None else ["batch"])]
    blank = _blank if args.json else None
    return _fill(AnswerOutput(args.output, identity(model.bundle, options, args, *also), lines, blank), order, make)


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


def _open_kept(path: Path) -> BinaryIO:
    """A file to append to and to read, for its owner alone; OSError where it is a link, no plain file, or too large."""
    descriptor = for_owner(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0))
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, f"{path} is a pipe or a device")
        if found.st_size > MOST_KEPT:
            raise OSError(errno.EFBIG, f"{path} has more than {MOST_KEPT >> 30} GiB")
        return os.fdopen(descriptor, "a+b")
    except BaseException:
        os.close(descriptor)
        raise


class AnswerOutput:
    """Output of answers. Without a file, an answer is printed as soon as those of all earlier lines were.

    With a file FILE, each answer is appended to FILE.part at once, as one line of JSON, and `finish` writes FILE. A
    FILE.part that the same command left is continued: `answers` has its content, by place. A device or a pipe gets all
    answers at the end.

    blank: returns the text for a blank line, given its place and the line; default: an empty line.

    Raises:
        InputError: FILE cannot be written, or FILE.part belongs to another command.
    """

    def __init__(
        self,
        output: Path | None,
        identity: str,
        lines: Sequence[str],
        blank: Callable[[int, str], str] | None = None,
    ) -> None:
        if output is not None and output.is_dir():
            raise InputError(f"The output file {output} is a folder; name a file.")
        self.answers: dict[int, str] = {}
        self.path = None if output is None or is_device(output) else output.with_name(f"{output.name}.part")
        self._output, self._identity, self._lines = output, identity, lines
        self._file: BinaryIO | None = None
        self._blank, self._printed = blank, 0

    def __enter__(self) -> AnswerOutput:
        if self.path is None:
            return self
        try:
            self._file = _open_kept(self.path)  # `__exit__` closes it
            if not self._take_up(self.path, self._file):
                self._write(self._identity)
        except BaseException as e:
            self.__exit__()
            if not isinstance(e, OSError):
                raise
            why = f"{self.path} is a link" if e.errno == errno.ELOOP else e.strerror
            raise InputError(f"The output file {self._output} cannot be written: {why}.") from None
        return self

    def _take_up(self, path: Path, file: BinaryIO) -> bool:
        """Read the answers that an earlier command left, as far as the lines are still the same; False if it left
        nothing."""
        file.seek(0)
        data = file.read()
        data = data[: data.rfind(b"\n") + 1]  # without a record that was cut off
        if not data:
            file.truncate(0)
            return False
        try:
            identity, *records = map(json.loads, data.decode().splitlines())
        except (ValueError, RecursionError):
            identity, records = None, []
        whole = (type(record) is list and list(map(type, record)) == [int, str, str] for record in records)
        if identity != self._identity or not all(whole):
            raise InputError(
                f"{path} holds what another command left unfinished: other options or another bundle. Remove it, or "
                "choose another --output."
            )
        for place, line, shown in records:
            if 0 <= place < len(self._lines) and self._lines[place] == line:
                self.answers[place] = shown
        file.truncate(len(data))
        return True

    def add(self, place: int, shown: str) -> None:
        """Keep the answer to the line at `place`."""
        self.answers[place] = shown
        if self._file is not None:
            self._write([place, self._lines[place], shown])
        elif self._output is None:
            self._print()

    def _print(self) -> None:
        """Print the answers whose turn it is, and the blank lines between them."""
        while self._printed < len(self._lines) and (shown := self._shown(self._printed)) is not None:
            print(shown, flush=True)
            self._printed += 1

    def _shown(self, place: int) -> str | None:
        """Return the output for the line at a place; None if it is not answered yet."""
        line = self._lines[place]
        if line.strip():
            return self.answers.get(place)
        return "" if self._blank is None else self._blank(place, line)

    def _write(self, record: object) -> None:
        assert self._file is not None
        self._file.write(f"{json.dumps(record)}\n".encode())
        self._file.flush()

    def finish(self) -> None:
        """All answers are there: write them in the order of the lines."""
        if self._output is None:
            self._print()
            return
        text = "".join(f"{self._shown(i)}\n" for i in range(len(self._lines)))
        try:
            write_whole(self._output, text)
        except OSError as e:
            kept = "" if self.path is None else f" {self.path} keeps the answers."
            raise InputError(f"The output file {self._output} cannot be written: {e.strerror}.{kept}") from None
        self.__exit__()
        if self.path is not None:
            self.path.unlink()

    def tell_stopped(self) -> None:
        """Say how far a command came that was to stop."""
        if self.path is not None:
            lines = sum(map(bool, map(str.strip, self._lines)))
            print(
                f"Stopped with {len(self.answers)} of {lines} lines done. {self.path} keeps them, and the same command "
                "goes on from there.",
                file=sys.stderr,
            )

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
