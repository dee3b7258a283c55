"""The end of a command. Its exit status is one of:

    0    success
    1    an unexpected error; or the reader of the output has gone
    2    refused: one sentence says what was wrong
    130  ended by Ctrl-C (SIGINT)
    143  ended by SIGTERM, as of `kill` or a system that shuts down

`--debug` adds a traceback and changes none of them.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn

UNFORESEEN = 1
REFUSED = 2
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM


class Terminated(KeyboardInterrupt):
    """SIGTERM: to what is at work it is what Ctrl-C is."""


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """The handler of both signals."""
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def status_of(interruption: BaseException | None) -> int:
    """The exit status of a command that an interruption ended."""
    return TERMINATED if isinstance(interruption, Terminated) else INTERRUPTED
