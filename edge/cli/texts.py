"""The texts that a command is about: its arguments, the lines of a file, or those of standard input."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from edge.errors import InputError

DASH = "-"


def given_texts(texts: Sequence[str], path: Path | None) -> Iterator[str]:
    """The texts, of which the lines of a file come as they are read.

    Raises:
        InputError: there are both, or the file cannot be read, or is no text.
    """
    if texts and path is not None:
        raise InputError("Texts are given, and a file of them too; leave one out.")
    if texts and list(texts) != [DASH]:
        return iter(texts)
    if path is None or str(path) == DASH:
        from edge.cli.run.prompt import lines_of_input

        return (line for _, line in lines_of_input())
    try:
        file = path.open("rb")
    except OSError as e:
        raise InputError(f"The file of texts {path} cannot be read: {e.strerror}.") from None
    return _lines(file, path)


def _lines(file: BinaryIO, path: Path) -> Iterator[str]:
    from edge.cli.run.prompt import decoded
    from edge.text_file import read_line

    with file:
        for number in itertools.count(1):
            name = f"Line {number} of {path}"
            try:
                data = read_line(file, name)
            except OSError as e:
                raise InputError(f"{name} cannot be read: {e.strerror}.") from None
            if not data:
                return
            yield decoded(data, name)
