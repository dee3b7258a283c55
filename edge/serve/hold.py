"""Models that a request is about to use, and that nobody closes meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self


class Hold:
    """Keeps a model from being closed to make room, until this is closed itself or no reference to it is left.

    Args:
        end: is called once.
    """

    def __init__(self, end: Callable[[], None]) -> None:
        self._end: Callable[[], None] | None = end

    def close(self) -> None:
        """Let the model go."""
        end, self._end = self._end, None
        if end is not None:
            end()

    def __del__(self) -> None:  # of a request whose client went away while a thread took the hold
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
