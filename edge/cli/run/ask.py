"""Line editor for the prompts of `edge run`: arrow keys, history, input of several lines, and paste."""

from __future__ import annotations

import contextlib
import re
import select
import signal
import sys
from types import FrameType, ModuleType
from typing import Any

from edge.cli.run.history import History
from edge.cli.run.terminal import PASTED, PROMPT, PROMPTS, RESET, colours, marks_pastes, note, raw

BLOCK = '"""'  # around a text of several lines
_OPENS = re.compile(rf"\s*(/system\s+)?{BLOCK}")
MORE = ". "
PASTE_S = 0.02  # in which no person types after Enter


class Prompt:
    """Asks for texts. With readline there are arrow keys, searching (Ctrl-R), and what was said before. Lines that are
    pasted are one text, with readline, with libedit, and without either.

    history: what was said in earlier sessions, and where to keep what is said in this one.
    """

    def __init__(self, history: History | None = None) -> None:
        self.on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self.editor = _editor() if self.on_terminal else None
        self._history = history
        self._libedit = "libedit" in ((self.editor and self.editor.__doc__) or "")
        if self.editor is not None:
            self.editor.set_auto_history(False)  # a text is kept whole
            if not self._libedit:  # which knows no marks: lines that come at once were pasted
                self.editor.parse_and_bind("set enable-bracketed-paste on")
            for text in history.texts if history else ():
                self.editor.add_history(text)

    def ask(self) -> str | None:
        """A text; None at the end of the input. Ctrl-C clears what was typed; `kill` ends the program as ever."""
        terminated = False

        def end(number: int, frame: FrameType | None) -> None:
            nonlocal terminated
            terminated = True
            before(number, frame)

        before: Any = signal.getsignal(signal.SIGTERM)
        if callable(before):
            signal.signal(signal.SIGTERM, end)
        try:
            text = self._text()
        except EOFError:
            print()
            return None
        except KeyboardInterrupt:
            print()
            if terminated:
                raise
            note("/quit or Ctrl-D leaves.")
            return ""
        except UnicodeDecodeError as e:
            note(f"That is no text in {e.encoding}, which this terminal is set to; type it again.")
            return ""
        finally:
            if callable(before):
                signal.signal(signal.SIGTERM, before)
        if text.strip() and "\0" not in text:
            if self.editor is not None:
                self.editor.add_history(text)
            if self._history is not None:
                self._history.add(text)
        return text

    def _text(self) -> str:
        text = self._line(PROMPTS)
        if (found := _OPENS.match(text)) is None:
            return text
        before, rest = found[1] or "", text[found.end() :]
        if rest.rstrip().endswith(BLOCK):
            return before + rest.rstrip().removesuffix(BLOCK).strip("\n")
        if "\n" in text:  # pasted: a program may begin so
            return text
        lines = [rest]
        try:
            while not lines[-1].rstrip().endswith(BLOCK):
                lines.append(self._line(MORE))
        except EOFError:
            print()
            note(f"The text was left out, because no {BLOCK} ended it.")
            return ""
        lines[-1] = lines[-1].rstrip().removesuffix(BLOCK)
        return before + "\n".join(lines).strip("\n")

    def _line(self, prompt: str) -> str:
        """A line, or as many as were pasted at once."""
        if not self.on_terminal:
            return input(prompt)
        waiting = self._libedit and _waits()
        coloured, marked = colours(sys.stdout), self.editor is None
        if marked:
            marks_pastes(True)
        try:
            line = input(self._shown(prompt) if coloured else prompt)
            if marked and PASTED[0] in line:
                while PASTED[1] not in line:
                    line += "\n" + input()
                line = line.replace(PASTED[0], "").replace(PASTED[1], "")
            while self._libedit and not waiting and _waits(PASTE_S):
                line += "\n" + input()
            return line
        finally:
            if marked:
                marks_pastes(False)
            if coloured:
                raw(sys.stdout, RESET)

    def _shown(self, prompt: str) -> str:
        """The prompt in the colour of what is typed. An editor is told which characters take no room."""
        return f"{PROMPT}{prompt}" if self.editor is None else f"\1{PROMPT}\2{prompt}"


def _editor() -> ModuleType | None:
    """readline, or libedit under its name; None where Python was built without."""
    with contextlib.suppress(ImportError):
        import readline

        return readline
    return None


def _waits(seconds: float = 0) -> bool:
    """Wait up to so many seconds for typed input; True if some has not been read."""
    return bool(select.select([sys.stdin], [], [], seconds)[0])
