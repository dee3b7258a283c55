"""Where a prompt of `edge run` comes from: the argument, a file or standard input."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

from edge.errors import InputError
from edge.text_file import MOST_LINE, read_whole


def read_prompt(prompt: str | None, file: Path | None) -> str | None:
    """The prompt; None where a person is to be asked.

    Raises:
        InputError: there are two, or it cannot be read, or is empty.
    """
    if file is not None:
        if prompt is not None:
            raise InputError(f"There are two prompts, {prompt[:40]!r} and the file {file}; give one of them.")
        if str(file) != "-":
            source = f"The prompt file {file}"
            try:
                with file.open("rb") as opened:
                    return _checked(decoded(read_whole(opened, source), source), source)
            except (OSError, ValueError) as e:
                raise InputError(f"{source} cannot be read: {getattr(e, 'strerror', e)}.") from None
    elif prompt is not None and prompt != "-":
        return _checked(prompt, "The prompt")
    elif prompt is None and sys.stdin.isatty():
        return None
    source = "Standard input"
    try:
        return _checked(decoded(read_whole(sys.stdin.buffer, source), source), source)
    except OSError as e:
        raise InputError(f"{source} cannot be read: {e.strerror}.") from None


def lines_of_input() -> Iterator[tuple[str, str]]:
    """What errors call each line of standard input, and the line, as they come.

    Raises:
        InputError: one is not UTF-8, or does not end, or there is nothing to read from.
    """
    for number in itertools.count(1):
        name = f"Line {number} of standard input"
        try:
            data = sys.stdin.buffer.readline(MOST_LINE + 1)
        except OSError as e:
            raise InputError(f"Standard input cannot be read: {e.strerror}.") from None
        if len(data) > MOST_LINE:
            raise InputError(f"{name} has more than {MOST_LINE >> 20} MiB; split it.")
        if not data:
            return
        yield name, decoded(data, name)


def decoded(data: bytes, source: str) -> str:
    """UTF-8 text without its last line end; `source` names where it came from."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise InputError(f"{source} is not UTF-8 text (see byte {e.start}); convert it first.") from None
    return text.removesuffix("\n").removesuffix("\r")


def _checked(text: str, source: str) -> str:
    if not text.strip():
        raise InputError(f"{source} is empty; give the model something to answer.")
    return text
