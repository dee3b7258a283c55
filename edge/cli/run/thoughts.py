"""A model's thoughts, as `edge run` shows them: dimmed, on a terminal alone, apart from the answer."""

from __future__ import annotations

import os
import sys

from edge.cli.screen import below, visible

UNANSWERED = (
    "The model was still thinking. --think-tokens N closes its thoughts after N tokens, --no-think leaves them out."
)


class Thoughts:
    """Shows thoughts as they come: on standard output, or on standard error where the answer goes elsewhere."""

    def __init__(self) -> None:
        self._out = next((out for out in (sys.stdout, sys.stderr) if out.isatty()), None)
        self._dim, self._end = ("", "") if os.environ.get("NO_COLOR") else ("\x1b[2m", "\x1b[0m")
        self._under_way = False
        self.unanswered = False

    @property
    def near(self) -> bool:
        """True if they are shown where the answer is."""
        return self._out is not None and self._out is sys.stdout

    def show(self, text: str) -> None:
        """More of them."""
        self.unanswered = True
        if self._out is not None and text:
            stream = below(self._out)
            stream.write(f"{self._dim}{visible(text)}{self._end}")
            stream.flush()
            self._under_way = True

    def end(self) -> None:
        """The answer begins."""
        self.unanswered = False
        if self._under_way and self._out is not None:
            self._out.write("\n\n")
            self._out.flush()
            self._under_way = False
