"""Keeping a terminal quiet while an answer is printed: what is typed meanwhile is not shown in it, and not lost."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any, Self

from edge.cli.run.terminal import marks_pastes

try:
    import termios
except ImportError:  # Windows
    termios = None  # type: ignore[assignment]

ENDING = [getattr(signal, name) for name in ("SIGHUP", "SIGQUIT") if hasattr(signal, name)]


class Quiet:
    """Context manager during which the terminal does not show typed text; the next prompt gets it. The terminal is
    restored at the end, while the program is stopped (Ctrl-Z), and before a signal ends it.

    edits: True if the prompt has a line editor, which reads keys one by one.
    """

    def __init__(self, edits: bool) -> None:
        self._edits = edits
        self._before: list[Any] | None = None
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if termios is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
            return self
        self._begin()
        if self._before is not None and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTSTP, *ENDING):
                if signal.getsignal(number) is signal.SIG_DFL:
                    self._handlers[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()

    def _begin(self) -> None:
        terminal = sys.stdin.fileno()
        with contextlib.suppress(OSError, termios.error):
            if os.tcgetpgrp(terminal) != os.getpgrp():  # behind a shell: the terminal is another's
                return
            self._before = termios.tcgetattr(terminal)
            quiet = termios.tcgetattr(terminal)
            quiet[3] &= ~(termios.ECHO | (termios.ICANON if self._edits else 0))
            quiet[3] |= termios.NOFLSH  # Ctrl-C ends the answer, and not what was typed
            if self._edits:
                quiet[6][termios.VMIN], quiet[6][termios.VTIME] = 1, 0
            termios.tcsetattr(terminal, termios.TCSANOW, quiet)
        marks_pastes(True)

    def _restore(self) -> None:
        if self._before is not None:
            marks_pastes(False)
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, self._before)
            self._before = None

    def _hear(self, number: int, frame: FrameType | None) -> None:
        """Obey a signal that stops or ends the program, the terminal restored."""
        self._restore()
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_kill(threading.get_ident(), number)  # returns when the program goes on
        signal.signal(number, self._hear)
        self._begin()
