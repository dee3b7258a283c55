"""The history of chat input, stored in the cache folder between sessions. It is private to its owner."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from edge.errors import InputError
from edge.home import cache_dir, for_owner, make_folder, read_own, replace_text

FILE = "chat_history.jsonl"
SWITCH = "EDGE_HISTORY"  # in the environment: off
KEPT = 1000  # texts
LONGEST = 1 << 16  # characters of a text that is kept


class History:
    """The texts of earlier sessions, the latest last; `add` stores another.

    If the folder cannot be read or written, or the file is another user's, it is empty and stores nothing.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._path: Path | None = None
        with contextlib.suppress(InputError, OSError):
            self._path = cache_dir() / FILE
            if os.path.lexists(self._path):
                try:
                    self._read(self._path)
                except OSError:
                    self._path = None

    def _read(self, path: Path) -> None:
        try:
            lines = read_own(path).split("\n")
        except ValueError:  # damaged, or by far too long: begun anew
            lines = []
            replace_text(path, "")
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                text = json.loads(line)
                if isinstance(text, str) and "\0" not in text:
                    self.texts.append(text)
        self.texts = self.texts[-KEPT:]
        if len(lines) > 2 * KEPT:
            replace_text(path, "".join(map(_line, self.texts)))

    def add(self, text: str) -> None:
        """Keep a text, unless it is the last one again."""
        if self.texts[-1:] == [text]:
            return
        self.texts.append(text)
        if self._path is None or len(text) > LONGEST:
            return
        try:
            make_folder(self._path.parent)
            with open(self._path, "a", encoding="utf-8", opener=_to_append) as file:
                file.write(_line(text))
        except OSError:
            self._path = None


def _line(text: str) -> str:
    return json.dumps(text) + "\n"  # of ASCII alone, whatever was typed


def _to_append(path: str, flags: int) -> int:
    descriptor = for_owner(path, flags)
    if hasattr(os, "fchmod"):
        os.fchmod(descriptor, 0o600)
    return descriptor


def history(no_history: bool | None) -> History | None:
    """The history, unless it is switched off."""
    return None if no_history or os.environ.get(SWITCH, "").lower() in ("off", "0", "no") else History()
