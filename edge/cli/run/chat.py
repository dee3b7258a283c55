"""The chat of `edge run` on a terminal."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from edge.cli.run.ask import Prompt
from edge.cli.run.history import History
from edge.cli.run.quiet import Quiet
from edge.cli.run.sampling import described
from edge.cli.run.saved import load_messages, save_messages
from edge.cli.run.settings import changed, listed
from edge.cli.run.terminal import CtrlC, Shown, figures, note, show
from edge.errors import InputError
from edge.runtime.chat import Chat
from edge.runtime.decode.answer import Piece, Timings
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.model import Model
from edge.runtime.text.template import Message

NEARLY_FULL = 1 / 8  # of the context is left
SHORT = 60  # characters of a message in a note
ALSO = {"bye": "quit", "exit": "quit", "clear": "reset", "?": "help"}
KEYS = """\
\"\"\" begins and ends a message of several lines; pasted lines are one message.
Arrow up recalls what was typed, Ctrl-R searches it. Ctrl-C stops an answer, Ctrl-D leaves.
A blank before a / sends the line to the model."""


class Command(NamedTuple):
    """takes: what follows the name; in [] where it may be left out."""

    takes: str
    about: str


COMMANDS = {
    "help": Command("", "show this"),
    "set": Command("[NAME VALUE]", "change a setting, as in /set temperature 0.7; alone: show all"),
    "system": Command("[TEXT]", "start over with this system message; alone: show it"),
    "regen": Command("", "answer the last message again"),
    "undo": Command("", "take back the last message and its answer"),
    "reset": Command("", "start over"),
    "save": Command("FILE", "write the conversation to a file"),
    "load": Command("FILE", "go on with the conversation in a file"),
    "stats": Command("", "show the figures of the last answer"),
    "quit": Command("", "leave"),
}


def chat(
    model: Model,
    options: GenerateOptions,
    system: str | None,
    interrupted: CtrlC,
    *,
    history: History | None = None,
    verbose: bool = False,
) -> None:
    """Ask, answer, and again, until /quit or the end of the input. verbose: with figures after each answer."""
    prompt = Prompt(history)
    name, edits = model.bundle.manifest.name, prompt.editor is not None
    talk = Talk(model.chat(system=system), name, options, interrupted, edits=edits, verbose=verbose)
    note(f"{name} · {talk.session.capacity:,} tokens of context\n/help shows what there is · Ctrl-D leaves")
    if how := described(model.settled(options)):
        note(how)
    while (said := prompt.ask()) is not None:
        if said.strip() and not talk.hear(said):
            return


class Talk:
    """A chat and what is remembered of it from line to line.

    name: the model's. edits: whether the prompt edits lines itself. verbose: whether figures follow each answer.
    """

    def __init__(
        self, session: Chat, name: str, options: GenerateOptions, interrupted: CtrlC, *, edits: bool, verbose: bool
    ) -> None:
        self.session, self._options, self._interrupted = session, options, interrupted
        self._edits, self._verbose = edits, verbose
        self._last: Timings | None = None
        self._again = 0  # other answers that the last message got
        self._warned = False
        self._name = name

    def hear(self, said: str) -> bool:
        """Obey a command or answer a message; False when the chat is over."""
        command = command_in(said)
        if command is None:
            self._again = 0
            self._answer(lambda: self.session.stream(said, self._options))
            return True
        name, rest = command
        try:
            name = _known(name, rest)
            if name == "quit":
                return False
            getattr(self, f"_{name}")(*([rest] if COMMANDS[name].takes else []))
        except InputError as e:
            note(str(e))
        return True

    # Commands

    def _help(self) -> None:
        width = max(len(f"/{name} {each.takes}") for name, each in COMMANDS.items())
        note("\n".join(f"{f'/{name} {each.takes}':{width}}  {each.about}" for name, each in COMMANDS.items()))
        note(KEYS)

    def _set(self, rest: str) -> None:
        if not rest:
            note(listed(self._options))
            return
        name, _, value = rest.partition(" ")
        options, said = changed(self._options, name, value.strip())
        self.session.settled(options)  # refuses what does not go together
        self._options = options
        note(said)

    def _system(self, rest: str) -> None:
        if not rest:
            shown = self.session.system
            note("There is no system message; /system TEXT sets one." if shown is None else f"System: {shown}")
            return
        quoted = len(rest) > 1 and rest[0] in "\"'" and rest[0] == rest[-1] and rest[0] not in rest[1:-1]
        text = rest[1:-1] if quoted else rest
        self._begin([{"role": "system", "content": text}] if text.strip() else [])
        note("The conversation starts over with this system message." if text else "There is no system message now.")

    def _reset(self) -> None:
        self._begin(None)
        note("The conversation starts over.")

    def _undo(self) -> None:
        message = self.session.undo()
        self._warned = False
        short = " ".join(message.split())
        note(f"Taken back: {short if len(short) <= SHORT else f'{short[:SHORT]}...'}")

    def _regen(self) -> None:
        self._again += 1
        options = self._options
        drawn = self.session.settled(options).temperature
        if drawn and isinstance(options.seed, int):  # the next draws, the same every time
            options = dataclasses.replace(options, seed=options.seed + self._again)
        if self._answer(lambda: self.session.stream_again(options)) and not drawn:
            note("At temperature 0 an answer stays the same; /set temperature 0.7 draws others.")

    def _save(self, rest: str) -> None:
        if not self.session.messages:
            raise InputError("Nothing was said yet in this conversation, so there is nothing to save.")
        note(f"Saved to {save_messages(rest, self._name, self.session.messages)}; /load goes on with it.")

    def _load(self, rest: str) -> None:
        messages = load_messages(rest)
        self._begin(messages)
        note(f"Loaded {_turns(self.session)} from {rest}." + (" The last one:" if len(messages) > 1 else ""))
        if len(messages) > 1:
            note(f"> {messages[-2]['content']}")
            with Shown(coloured=True) as out:
                out.write(messages[-1]["content"])

    def _stats(self) -> None:
        lines = [
            f"conversation  {_turns(self.session)}, {self.session.cached_tokens:,} of {self.session.capacity:,} tokens "
            "cached"
        ]
        if (last := self._last) is not None:
            new = last.prompt_tokens - last.cached_tokens
            lines.append(f"last prompt   {new} new tokens, {last.cached_tokens} from the cache")
            lines.append(f"last answer   {figures(last)}")
        note("\n".join(lines))

    def _begin(self, messages: list[Message] | None) -> None:
        self.session.reset(messages)
        self._last, self._again, self._warned = None, 0, False

    # Answers

    def _answer(self, stream: Callable[[], Iterator[Piece]]) -> bool:
        """Show an answer and say what is to be said of it; returns whether it ended by itself."""
        try:
            with self._interrupted, Quiet(self._edits):
                last = show(self._watched(stream()), coloured=True)
        except InputError as e:
            note(f"{e} /reset starts over.")
            return False
        self._last = dataclasses.replace(last.timings)
        if self._verbose:
            note(figures(self._last))
        if last.finish_reason == "length":
            note(f"Cut off after {last.timings.generated_tokens} tokens; /set max-tokens N allows more.")
        elif last.finish_reason == "interrupted":
            note("Stopped.")
        elif last.finish_reason == "context":
            note(f"The context of {self.session.capacity:,} tokens is full; /reset starts over.")
        else:
            self._warn(self.session.cached_tokens)
        return last.finish_reason == "stop"

    def _watched(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """The pieces; before the first one what is to be known of the context."""
        for i, piece in enumerate(pieces):
            if i == 0:
                self._warn(piece.timings.prompt_tokens)
            yield piece

    def _warn(self, tokens: int) -> None:
        """Say once that the context is nearly full."""
        left = self.session.capacity - tokens
        if not self._warned and left < NEARLY_FULL * self.session.capacity:
            self._warned = True
            note(
                f"The context is nearly full: {left:,} of {self.session.capacity:,} tokens are left; /undo takes back "
                "the last turn, /reset starts over, --context N makes room."
            )


def command_in(said: str) -> tuple[str, str] | None:
    """The command in what was typed, and what follows it; None where it is a message."""
    found = re.match(r"/([A-Za-z]+|\?)(?:\s+(.*))?$", said.rstrip(), re.DOTALL)
    if found is None or ("\n" in said.rstrip() and found[1].lower() != "system"):
        return None
    return found[1].lower(), (found[2] or "").strip()


def _known(name: str, rest: str) -> str:
    """The command of this name; InputError where there is none, or it takes no such thing."""
    name = ALSO.get(name, name)
    command = COMMANDS.get(name)
    if command is None:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        meant = f"did you mean /{near[0]}?" if near else "/help lists them."
        raise InputError(f"There is no command /{name}; {meant}")
    if rest and not command.takes:
        raise InputError(f"/{name} takes nothing after it, and not {rest[:SHORT]!r}.")
    if not rest and command.takes == "FILE":
        raise InputError(f"/{name} needs a file; write /{name} talk.json, for example.")
    return name


def _turns(session: Chat) -> str:
    turns = sum(message["role"] == "user" for message in session.messages)
    return f"{turns} turn{'' if turns == 1 else 's'}"
