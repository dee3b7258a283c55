"""Where a prompt of `edge run` comes from: the argument, a file or standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from edge.errors import InputError


def read_prompt(prompt: str | None, file: Path | None) -> str | None:
    """The prompt; None where a person is to be asked.

    Raises:
        InputError: there are two, or it cannot be read, or is empty.
    """
    if file is not None:
        if prompt is not None:
            raise InputError(f"There are two prompts, {prompt[:40]!r} and the file {file}; give one of them.")
        if str(file) != "-":
            try:
                source = f"The prompt file {file}"
                return _checked(decoded(file.read_bytes(), source), source)
            except (OSError, ValueError) as e:
                raise InputError(f"The prompt file {file} cannot be read: {getattr(e, 'strerror', e)}.") from None
    elif prompt is not None and prompt != "-":
        return _checked(prompt, "The prompt")
    elif prompt is None and sys.stdin.isatty():
        return None
    return _checked(decoded(sys.stdin.buffer.read(), "Standard input"), "Standard input")


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
