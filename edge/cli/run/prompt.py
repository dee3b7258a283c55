"""The prompt of `edge run`, from standard input, files and the argument, each alone or together."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from edge.cli.streams import StandardInputClosed
from edge.errors import InputError
from edge.text_file import lines_of, read_line, read_whole

BETWEEN = "\n\n"  # the parts of a prompt
DASH = "-"  # standard input, where a file or a prompt is named
PATIENCE_S = 1.0  # after which a person is told what is waited for
STDIN = "Standard input"


def read_prompt(prompt: str | None, files: Sequence[Path] | None) -> str | None:
    """The prompt: what is piped into standard input, the text of each file and the argument, as far as they are there,
    with a blank line between them; None where there is none of them and a person is to be asked.

    Nothing may be piped where there is a file or an argument: standard input may be empty, closed, or no file at all.

    Raises:
        InputError: one of them cannot be read, or is empty.
    """
    named = [DASH for each in (prompt, *map(str, files or [])) if each == DASH]
    parts = [_text_of(file) for file in files or [] if str(file) != DASH]
    if prompt is not None and prompt != DASH:
        parts.append(_checked(prompt, "The prompt"))
    if named or not parts:
        if not named and sys.stdin.isatty():
            return None
        parts.insert(0, _checked(_decoded_input(), STDIN))
    elif piped := _piped():
        parts.insert(0, piped)
    *context, last = parts
    return BETWEEN.join([*(each.rstrip("\r\n") for each in context), last])


def has_piped() -> bool:
    """True if standard input is a pipe or a file with unread data at this moment."""
    with contextlib.suppress(OSError, ValueError, AttributeError, ImportError):
        import fcntl
        import termios

        number = sys.stdin.fileno()
        found = os.fstat(number)
        if stat.S_ISREG(found.st_mode):
            return found.st_size > os.lseek(number, 0, os.SEEK_CUR)
        if stat.S_ISFIFO(found.st_mode):
            return any(fcntl.ioctl(number, termios.FIONREAD, bytes(4)))
    return False


def read_lines(file: Path) -> list[str]:
    """The lines of a file, or of standard input where it is called -; each is a prompt.

    Raises:
        InputError: it cannot be read, or is empty.
    """
    return lines_of(_checked(_decoded_input(), STDIN) if str(file) == DASH else _text_of(file))


def lines_of_input() -> Iterator[tuple[str, str]]:
    """Yield the lines of standard input as they come, each after its name in error messages.

    Raises:
        InputError: a line is not UTF-8, or has no end, or there is no standard input.
    """
    for number in itertools.count(1):
        name = f"Line {number} of standard input"
        try:
            with _told_what_is_waited_for() if number == 1 else contextlib.nullcontext():
                data = read_line(sys.stdin.buffer, name)
        except OSError as e:
            raise InputError(f"{STDIN} cannot be read: {e.strerror}.") from None
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


def _text_of(file: Path) -> str:
    source = f"The prompt file {file}"
    try:
        with file.open("rb") as opened:
            return _checked(decoded(read_whole(opened, source), source), source)
    except (OSError, ValueError) as e:
        raise InputError(f"{source} cannot be read: {getattr(e, 'strerror', e)}.") from None


def _decoded_input() -> str:
    try:
        return decoded(_input(), STDIN)
    except OSError as e:
        raise InputError(f"{STDIN} cannot be read: {e.strerror}.") from None


def _piped() -> str:
    """The text that standard input has besides a prompt; none where it is a terminal, closed, or cannot be read."""
    if sys.stdin.isatty():
        return ""
    try:
        data = _input()
    except (OSError, StandardInputClosed):
        return ""
    text = decoded(data, STDIN)
    return text if text.strip() else ""


def _input() -> bytes:
    with contextlib.suppress(OSError, ValueError):  # it is no file
        if sys.platform != "win32":
            os.set_blocking(sys.stdin.fileno(), True)  # which a program that started this one may have changed
    with _told_what_is_waited_for():
        return read_whole(sys.stdin.buffer, STDIN)


@contextlib.contextmanager
def _told_what_is_waited_for() -> Iterator[None]:
    """Say after a while that standard input is read: a program that started this one may have left it open."""
    timer = threading.Timer(PATIENCE_S, _tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _tell() -> None:
    print(
        "Waiting for standard input, which belongs to the prompt, to end; where it is to be left out, add </dev/null.",
        file=sys.stderr,
        flush=True,
    )


def _checked(text: str, source: str) -> str:
    if not text.strip():
        raise InputError(f"{source} is empty; give the model something to answer.")
    return text
