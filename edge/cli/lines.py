"""A file of lines through a model, line by line, with progress; into a file, which loses nothing when it is stopped."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from edge.cli.progress import bar
from edge.cli.run import INTERRUPTED, CtrlC
from edge.cli.text2text import Answer, answer
from edge.errors import InputError

if TYPE_CHECKING:
    from edge.bundle import Bundle
    from edge.runtime.answer import GenerateOptions
    from edge.runtime.text2text import Text2Text, Text2TextOptions

SHAPING = ("json", "skip", "context", "exact", "memory")  # arguments that can change an answer
AHEAD = 2  # lines for each thread that are begun before the first one's answer is taken


def run_lines(
    model: Text2Text,
    lines: Sequence[str],
    options: Text2TextOptions,
    args: argparse.Namespace,
    interrupted: CtrlC,
    at_a_time: int,
) -> int:
    """Answer each line, so many at a time; blank ones stay blank. Returns the exit status.

    Into a file the longest go first, and their answers come into their places in the end; otherwise each is printed
    as soon as those before it are.

    Raises:
        InputError: a line that the model cannot take, before anything is done; or the output file cannot be written.
    """
    model.check(options)
    lengths = _lengths(model, lines, options, args.file)
    begun, done = time.monotonic(), list[Answer]()
    with Kept(args.output, identity(model.bundle, options, args), lines) as kept:
        waiting = [i for i in sorted(lengths, key=lambda i: -lengths[i]) if i not in kept.answers]
        if args.output is None:
            waiting = [i for i, _ in enumerate(lines)]
        elif kept.answers:
            tell_taken_up(kept)
        quiet = args.output is None and sys.stdout.isatty()  # answers and a bar would be drawn over each other
        with contextlib.nullcontext(_ignore) if quiet else bar("Lines", len(waiting)) as advance:
            made = side_by_side(lambda i: _answer(model, i, lines[i], options, args.json), waiting, at_a_time)
            with contextlib.closing(made):
                for i, one in made:
                    if interrupted():
                        break
                    kept.add(i, one.shown)
                    advance(1)
                    done += [one] if i in lengths else []
        seconds = time.monotonic() - begun
        if not interrupted():
            kept.finish()
    report(done, seconds)
    if not interrupted():
        return 0
    if args.output is not None:
        tell_stopped(kept, len(lengths))
    return INTERRUPTED


def side_by_side(
    make: Callable[[int], Answer], places: Iterable[int], at_a_time: int
) -> Generator[tuple[int, Answer], None, None]:
    """What `make` makes of each place, in their order, in so many threads."""
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


def tell_taken_up(kept: Kept) -> None:
    """Say how many answers an earlier command left."""
    print(f"{len(kept.answers)} lines were done already; going on with the others.", file=sys.stderr)


def tell_stopped(kept: Kept, lines: int) -> None:
    """Say how far a command came that was to stop, of `lines` that are not blank."""
    print(
        f"Stopped with {len(kept.answers)} of {lines} lines done. {kept.path} keeps them, and the same command goes on "
        "from there.",
        file=sys.stderr,
    )


def _ignore(step: float) -> None:
    pass


def _answer(model: Text2Text, place: int, line: str, options: Text2TextOptions, as_json: bool) -> Answer:
    if not line.strip():
        return Answer("")
    one = answer(model, line, options, as_json)
    if options.n_best > 1 and not as_json:
        one = one._replace(shown="\n".join(f"{place + 1}\t{each}" for each in one.shown.split("\n")))
    return one


def _lengths(model: Text2Text, lines: Sequence[str], options: Text2TextOptions, file: Path) -> dict[int, int]:
    """The number of tokens of each line that is not blank, by its place."""
    lengths = {}
    for i, line in enumerate(lines):
        if line.strip():
            try:
                lengths[i] = len(model.prompt_ids(line, options))
            except InputError as e:
                raise InputError(f"Line {i + 1} of {file}: {e}") from None
    return lengths


def identity(bundle: Bundle, options: Text2TextOptions | GenerateOptions, args: argparse.Namespace, *also: str) -> str:
    """Equal for two commands that give the same answers: of the same bundle, options, and arguments `SHAPING` and
    `also`. Those for speed alone, such as --threads, may differ."""
    shaping = {k: v for k, v in dataclasses.asdict(options).items() if k != "interrupted"}
    given = {name: getattr(args, name) for name in (*SHAPING, *also)}
    return hashlib.sha256(json.dumps([bundle.manifest.to_json(), shaping, given], sort_keys=True).encode()).hexdigest()


def report(done: Sequence[Answer], seconds: float) -> None:
    """One line of figures on standard error."""
    from edge.runtime.memory import peak_rss_mb

    rss, cut = peak_rss_mb(), sum(one.cut for one in done)
    parts = [
        f"{len(done):,} lines",
        f"{sum(one.tokens for one in done):,} tokens",
        f"{len(done) / max(seconds, 1e-6):,.1f} lines/s",
        "peak RSS unknown" if rss is None else f"peak RSS {rss:.0f} MiB",
        *([f"{cut:,} cut off by --max-tokens or the context"] if cut else []),
    ]
    print(*parts, sep=" · ", file=sys.stderr)


class Kept:
    """Where answers go. Without a file to standard output, in the order in which they are added.

    With a file FILE each answer goes to FILE.part at once, as one line of JSON; `finish` writes FILE under another name
    and renames it. A FILE.part that the same command left is taken up: `answers` has what is in it, by place.

    Raises:
        InputError: FILE cannot be written, or FILE.part is not the same command's.
    """

    def __init__(self, output: Path | None, identity: str, lines: Sequence[str]) -> None:
        if output is not None and output.is_dir():
            raise InputError(f"The output file {output} is a folder; name a file.")
        self.answers: dict[int, str] = {}
        self.path = None if output is None else output.with_name(f"{output.name}.part")
        self._output, self._identity, self._lines = output, identity, lines
        self._file: TextIO = sys.stdout

    def __enter__(self) -> Kept:
        if self._output is None or self.path is None:
            return self
        try:
            begun = self.path.exists() and self._take_up(self.path)
            self._file = self.path.open("a" if begun else "w", encoding="utf-8")
            if not begun:
                self._write(self._identity)
        except OSError as e:
            raise InputError(f"The output file {self._output} cannot be written: {e.strerror}.") from None
        return self

    def _take_up(self, path: Path) -> bool:
        """Read the answers that an earlier command left, as far as the lines are still the same; False if it left
        nothing."""
        data = path.read_bytes()
        data = data[: data.rfind(b"\n") + 1]  # without a record that was cut off
        if not data:
            return False
        identity, *records = data.decode().splitlines()
        if identity != json.dumps(self._identity):
            raise InputError(
                f"{path} holds what another command left unfinished: other options or another bundle. Remove it, or "
                "choose another --output."
            )
        for record in records:
            place, line, shown = json.loads(record)
            if place < len(self._lines) and self._lines[place] == line:
                self.answers[place] = shown
        os.truncate(path, len(data))
        return True

    def add(self, place: int, shown: str) -> None:
        """Keep the answer to the line at `place`."""
        if self._output is None:
            print(shown, flush=True)
            return
        self._write([place, self._lines[place], shown])
        self.answers[place] = shown

    def _write(self, record: object) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def finish(self) -> None:
        """All answers are there: write them in the order of the lines."""
        if self._output is None or self.path is None:
            return
        whole = self._output.with_name(f"{self._output.name}.new")
        try:
            with whole.open("w", encoding="utf-8") as file:
                file.writelines(f"{self.answers.get(i, '')}\n" for i in range(len(self._lines)))
            whole.replace(self._output)
        except OSError as e:
            raise InputError(
                f"The output file {self._output} cannot be written: {e.strerror}. {self.path} keeps the answers."
            ) from None
        self._file.close()
        self.path.unlink()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not sys.stdout:
            self._file.close()
