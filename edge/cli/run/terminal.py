"""What `edge run` shows and hears on a terminal: answers as they come, figures, notes, a person's lines, Ctrl-C."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable
from types import FrameType
from typing import TYPE_CHECKING, Self

from edge.cli.ending import INTERRUPTED, interrupt
from edge.cli.run.thoughts import UNANSWERED, Thoughts
from edge.cli.screen import below, visible

if TYPE_CHECKING:
    from edge.runtime.decode.answer import Piece, Timings

ENDED_BY = {"length": ["cut off by --max-tokens"], "context": ["the context is full"], "interrupted": ["stopped"]}


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


def ask() -> str | None:
    """A line from the user; None at the end of the input. Ctrl-C clears the line."""
    try:
        return input("> ")
    except EOFError:
        print()
        return None
    except KeyboardInterrupt:
        print()
        note("/quit or Ctrl-D leaves.")
        return ""


def note(text: str) -> None:
    """Say something that is not the model's, dimmed on a terminal."""
    if not sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)
        return
    print(f"\x1b[2m{visible(text)}\x1b[0m", file=below(sys.stderr), flush=True)


def show(pieces: Iterable[Piece]) -> Piece:
    """Write an answer to standard output as it comes, with a line end after it; returns the last piece."""
    out, thoughts = sys.stdout, Thoughts()
    for piece in pieces:
        if piece.thoughts is not None:
            thoughts.show(piece.thoughts)
        if piece.text:
            thoughts.end()
            out.write(piece.text)
            out.flush()
    out.write("\n")
    out.flush()
    if thoughts.unanswered:
        note(UNANSWERED)
    return piece


def show_with_figures(pieces: Iterable[Piece]) -> None:
    """`show`, and on standard error a line of figures and what cut the answer off."""
    last = show(pieces)
    print(figures(last.timings), *ENDED_BY.get(last.finish_reason or "", []), sep=" · ", file=sys.stderr)


def figures(timings: Timings) -> str:
    """One line: prompt tokens, time to first token, tokens per second, peak memory."""
    rate, speculation = timings.decode_tokens_per_s, timings.speculation
    drafts = f" ({speculation.accepted} drafted)" if speculation and speculation.accepted else ""
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
