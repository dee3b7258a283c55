"""A stream of pieces that several threads may hold, and one at a time reads."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, TypeVar

from edge.errors import InputError

T = TypeVar("T")

EXECUTING = "generator already executing"  # what Python says


class Stream(Generator[T, None, None]):
    """A generator that raises InputError where a thread asks for the next piece while another one waits for it."""

    def __init__(self, pieces: Generator[T, None, None]) -> None:
        self._pieces = pieces

    def __next__(self) -> T:
        return next_of(self._pieces)

    def send(self, value: None) -> T:
        return next_of(self._pieces)

    def throw(self, *error: Any) -> T:
        try:
            return self._pieces.throw(*error)
        except ValueError as e:
            raise _told(e) from e.__cause__

    def close(self) -> None:
        try:
            self._pieces.close()
        except ValueError as e:
            raise _told(e) from e.__cause__


def next_of(pieces: Iterator[T]) -> T:
    """The next piece of a generator; InputError where another thread waits for it."""
    try:
        return next(pieces)
    except ValueError as e:
        raise _told(e) from e.__cause__


def _told(error: ValueError) -> Exception:
    if str(error) != EXECUTING:
        return error
    return InputError("Another thread reads this stream; read it in one thread, or ask for one in each.")
