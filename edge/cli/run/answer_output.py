"""The file that the answers to a file's lines go into: each is kept at once, and a stop loses none."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from edge.cli.reports import is_device, write_whole
from edge.errors import InputError
from edge.home import for_owner

MOST_KEPT = 2 << 30  # bytes that are read of what an earlier command left


def _open_kept(path: Path) -> BinaryIO:
    """A file to append to and to read, for its owner alone; OSError where it is a link, no plain file, or too large."""
    descriptor = for_owner(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0))
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, f"{path} is a pipe or a device")
        if found.st_size > MOST_KEPT:
            raise OSError(errno.EFBIG, f"{path} has more than {MOST_KEPT >> 30} GiB")
        return os.fdopen(descriptor, "a+b")
    except BaseException:
        os.close(descriptor)
        raise


class AnswerOutput:
    """Output of answers. Without a file, an answer is printed as soon as those of all earlier lines were.

    With a file FILE, each answer is appended to FILE.part at once, as one line of JSON, and `finish` writes FILE. A
    FILE.part that the same command left is continued: `answers` has its content, by place. A device or a pipe gets all
    answers at the end.

    blank: returns the text for a blank line, given its place and the line; default: an empty line.

    Raises:
        InputError: FILE cannot be written, or FILE.part belongs to another command.
    """

    def __init__(
        self,
        output: Path | None,
        identity: str,
        lines: Sequence[str],
        blank: Callable[[int, str], str] | None = None,
    ) -> None:
        if output is not None and output.is_dir():
            raise InputError(f"The output file {output} is a folder; name a file.")
        self.answers: dict[int, str] = {}
        self.path = None if output is None or is_device(output) else output.with_name(f"{output.name}.part")
        self._output, self._identity, self._lines = output, identity, lines
        self._file: BinaryIO | None = None
        self._blank, self._printed = blank, 0

    def __enter__(self) -> AnswerOutput:
        if self.path is None:
            return self
        try:
            self._file = _open_kept(self.path)  # `__exit__` closes it
            if not self._take_up(self.path, self._file):
                self._write(self._identity)
        except BaseException as e:
            self.__exit__()
            if not isinstance(e, OSError):
                raise
            why = f"{self.path} is a link" if e.errno == errno.ELOOP else e.strerror
            raise InputError(f"The output file {self._output} cannot be written: {why}.") from None
        return self

    def _take_up(self, path: Path, file: BinaryIO) -> bool:
        """Read the answers that an earlier command left, as far as the lines are still the same; False if it left
        nothing."""
        file.seek(0)
        data = file.read()
        data = data[: data.rfind(b"\n") + 1]  # without a record that was cut off
        if not data:
            file.truncate(0)
            return False
        try:
            identity, *records = map(json.loads, data.decode().splitlines())
        except (ValueError, RecursionError):
            identity, records = None, []
        whole = (type(record) is list and list(map(type, record)) == [int, str, str] for record in records)
        if identity != self._identity or not all(whole):
            raise InputError(
                f"{path} holds what another command left unfinished: other options or another bundle. Remove it, or "
                "choose another --output."
            )
        for place, line, shown in records:
            if 0 <= place < len(self._lines) and self._lines[place] == line:
                self.answers[place] = shown
        file.truncate(len(data))
        return True

    def add(self, place: int, shown: str) -> None:
        """Keep the answer to the line at `place`."""
        self.answers[place] = shown
        if self._file is not None:
            self._write([place, self._lines[place], shown])
        elif self._output is None:
            self._print()

    def _print(self) -> None:
        """Print the answers whose turn it is, and the blank lines between them."""
        while self._printed < len(self._lines) and (shown := self._shown(self._printed)) is not None:
            print(shown, flush=True)
            self._printed += 1

    def _shown(self, place: int) -> str | None:
        """Return the output for the line at a place; None if it is not answered yet."""
        line = self._lines[place]
        if line.strip():
            return self.answers.get(place)
        return "" if self._blank is None else self._blank(place, line)

    def _write(self, record: object) -> None:
        assert self._file is not None
        self._file.write(f"{json.dumps(record)}\n".encode())
        self._file.flush()

    def finish(self) -> None:
        """All answers are there: write them in the order of the lines."""
        if self._output is None:
            self._print()
            return
        text = "".join(f"{self._shown(i)}\n" for i in range(len(self._lines)))
        try:
            write_whole(self._output, text)
        except OSError as e:
            kept = "" if self.path is None else f" {self.path} keeps the answers."
            raise InputError(f"The output file {self._output} cannot be written: {e.strerror}.{kept}") from None
        self.__exit__()
        if self.path is not None:
            self.path.unlink()

    def tell_stopped(self) -> None:
        """Say how far a command came that was to stop."""
        if self.path is not None:
            lines = sum(map(bool, map(str.strip, self._lines)))
            print(
                f"Stopped with {len(self.answers)} of {lines} lines done. {self.path} keeps them, and the same command "
                "goes on from there.",
                file=sys.stderr,
            )

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
