"""Terminal output and signals of `edge run`: answers as they come, figures, notes, Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable
from types import FrameType
from typing import TYPE_CHECKING, Self, TextIO

from edge.cli.ending import INTERRUPTED, interrupt
from edge.cli.run.thoughts import UNANSWERED, Thoughts
from edge.cli.run.wrap import Wrapped, fold
from edge.cli.screen import below, visible

if TYPE_CHECKING:
    from edge.runtime.decode.answer import Piece, Timings

ENDED_BY = {"length": ["cut off by --max-tokens"], "context": ["the context is full"], "interrupted": ["stopped"]}
PROMPTS = "> "
PROMPT, ANSWER, DIM, RESET = "\x1b[1;32m", "\x1b[36m", "\x1b[2m", "\x1b[0m"  # bold green, cyan
PASTED = "\x1b[200~", "\x1b[201~"  # what a terminal puts around what is pasted, where it was asked to
WIDTH = 80  # columns of a terminal that does not say


class CtrlC:
    """While entered, Ctrl-C is remembered and asks what is at work to end; pressed once more it ends the program.
    signals: others that say the same. status: the exit status of a command that it ended."""

    def __init__(self, *signals: int) -> None:
        self._signals = (signal.SIGINT, *signals)
        self.pressed, self.status = False, INTERRUPTED

    def __call__(self) -> bool:
        return self.pressed

    def __enter__(self) -> Self:
        self.pressed = False
        self._before = {number: signal.signal(number, self._press) for number in self._signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _press(self, number: int, frame: FrameType | None) -> None:
        if self.pressed:
            interrupt(number, frame)
        self.pressed, self.status = True, 128 + number


def colours(stream: TextIO) -> bool:
    """True if a stream is a terminal with colours, and its user wants them (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and knows_codes()


def knows_codes() -> bool:
    """True if terminals here obey control codes."""
    return sys.platform == "win32" or os.environ.get("TERM", "") not in ("", "dumb")


def raw(stream: TextIO, code: str) -> None:
    """Write a control code of ours to a terminal."""
    drawn = below(stream)
    drawn.write(code)
    drawn.flush()


def marks_pastes(begin: bool) -> None:
    """Have the terminal mark what is pasted (`PASTED`), or no more."""
    if knows_codes():
        raw(sys.stdout, "\x1b[?2004h" if begin else "\x1b[?2004l")


def columns(stream: TextIO) -> int:
    """The width of a terminal."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or WIDTH
    except (OSError, ValueError):
        return WIDTH


def note(text: str) -> None:
    """Say something that is not the model's; on a terminal dimmed, and broken at words."""
    if not sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)
        return
    shown = fold(visible(text), columns(sys.stderr))
    print(f"{DIM}{shown}{RESET}" if colours(sys.stderr) else shown, file=below(sys.stderr), flush=True)


class Shown:
    """An answer on standard output: on a terminal it is broken at words, and coloured where that is asked for."""

    def __init__(self, coloured: bool = False) -> None:
        self._out = out = sys.stdout
        self._colour = coloured and colours(out)
        self._wrapped = Wrapped(below(out).write, lambda: columns(out)) if out.isatty() else None

    def __enter__(self) -> Self:
        if self._colour:
            raw(self._out, ANSWER)
        return self

    def write(self, text: str) -> None:
        if self._wrapped is None:
            self._out.write(text)
        else:
            self._wrapped.write(visible(text))
        self._out.flush()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._wrapped is not None:
            self._wrapped.end()
        if self._colour:
            raw(self._out, RESET)
        if kind is None or self._wrapped is not None:
            self._out.write("\n")
            self._out.flush()


def show(pieces: Iterable[Piece], coloured: bool = False) -> Piece:
    """Write an answer to standard output as it comes, with a line end after it; returns the last piece."""
    thoughts, out = Thoughts(), None
    with contextlib.ExitStack() as answer:
        for piece in pieces:
            if piece.thoughts is not None:
                if piece.thoughts and out is not None and thoughts.near:  # words before a call, and thoughts again
                    answer.close()
                    out = None
                thoughts.show(piece.thoughts)
            if piece.text:
                thoughts.end()
                if out is None:
                    out = answer.enter_context(Shown(coloured))
                out.write(piece.text)
        if out is None:
            answer.enter_context(Shown())  # the line end of an answer that says nothing
    if thoughts.unanswered:
        note(UNANSWERED)
    return piece


def show_with_figures(pieces: Iterable[Piece]) -> None:
    """`show`, and on standard error a line of figures and what cut the answer off."""
    last = show(pieces)
    line = " · ".join([figures(last.timings), *ENDED_BY.get(last.finish_reason or "", [])])
    print(fold(line, columns(sys.stderr)) if sys.stderr.isatty() else line, file=sys.stderr)


def figures(timings: Timings) -> str:
    """One line: prompt tokens, time to first token, tokens per second, peak memory."""
    rate, speculation = timings.decode_tokens_per_s, timings.speculation
    counts = {"forced": timings.forced_tokens, "drafted": speculation.accepted if speculation else 0}
    ahead = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    drafts = f" ({ahead})" if ahead else ""
    return " · ".join(
        [
            f"{timings.prompt_tokens} prompt token{'' if timings.prompt_tokens == 1 else 's'}",
            _first(timings),
            f"{timings.generated_tokens} tokens" + ("" if rate is None else f", {rate:.1f} tokens/s") + drafts,
            peak_memory(),
        ]
    )


def _first(timings: Timings) -> str:
    if timings.simulated:
        return "on a simulator, whose times say nothing"
    return "no first token" if timings.ttft_ms is None else f"TTFT {timings.ttft_ms:.0f} ms"


def peak_memory() -> str:
    """This process's, in words: private memory, and all that was resident."""
    from edge.runtime.memory.process import MB, held

    found = held()
    if found is None:
        return "peak memory unknown"
    return f"peak {found.peak_private / MB:.0f} MB private, {found.peak_rss / MB:.0f} MB RSS"
