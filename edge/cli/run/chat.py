"""The chat of `edge run` on a terminal."""

from __future__ import annotations

import contextlib
import dataclasses

from edge.cli.run.sampling import described
from edge.cli.run.terminal import CtrlC, ask, figures, note, show
from edge.errors import InputError
from edge.runtime.chat import Chat
from edge.runtime.decode.answer import GenerateOptions, Timings
from edge.runtime.model import Model

COMMANDS = "/reset starts over · /stats shows figures · /quit leaves · Ctrl-C stops an answer"


def chat(model: Model, options: GenerateOptions, system: str | None, interrupted: CtrlC) -> None:
    """Ask, answer, and again, until /quit or the end of the input."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (line editing and history for `input`)
    session = model.chat(system=system)
    last: Timings | None = None
    note(f"{model.bundle.manifest.name} · {session.capacity:,} tokens of context\n{COMMANDS}")
    if how := described(model.settled(options)):
        note(how)
    while (line := ask()) is not None:
        match line.strip():
            case "":
                pass
            case "/quit":
                return
            case "/reset":
                session.reset()
                note("The conversation starts over.")
            case "/stats":
                note(_stats(session, last))
            case word if word.startswith("/") and " " not in word:
                note(f"There is no command {word}.\n{COMMANDS}")
            case _:
                last = _turn(session, line, options, interrupted) or last


def _turn(session: Chat, line: str, options: GenerateOptions, interrupted: CtrlC) -> Timings | None:
    try:
        with interrupted:
            last = show(session.stream(line, options))
    except InputError as e:
        note(f"{e} /reset starts over.")
        return None
    if last.finish_reason == "length":
        note(f"Cut off after {last.timings.generated_tokens} tokens; --max-tokens allows more.")
    elif last.finish_reason == "interrupted":
        note("Stopped.")
    elif last.finish_reason == "context":
        note(f"The context of {session.capacity:,} tokens is full; /reset starts over.")
    return dataclasses.replace(last.timings)


def _stats(session: Chat, last: Timings | None) -> str:
    turns = sum(message["role"] == "user" for message in session.messages)
    plural = "" if turns == 1 else "s"
    lines = [f"conversation  {turns} turn{plural}, {session.cached_tokens:,} of {session.capacity:,} tokens cached"]
    if last is not None:
        new = last.prompt_tokens - last.cached_tokens
        lines.append(f"last prompt   {new} new tokens, {last.cached_tokens} from the cache")
        lines.append(f"last answer   {figures(last)}")
    return "\n".join(lines)
