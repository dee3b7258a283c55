"""Models that a request is about to use, and that nobody closes meanwhile."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self

from edge.runtime.memory.shares import closed
from edge.serve.refusal import WorkerClosed


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


class Held(ABC):
    """A model in memory, which requests hold while they are about to ask it.

    Args:
        name: of the model.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        # Its lock may be taken again by a thread that has it: there, too, the collector may end a hold.
        self._change = threading.Condition()
        self._holds = 0
        self._closed = False

    @property
    @abstractmethod
    def idle(self) -> bool:
        """True if nothing is asked."""

    @abstractmethod
    def close(self) -> None:
        """End what is asked, and give the model's memory back."""

    def hold(self) -> Hold:
        """Keep the model in memory for a request that is about to ask it. WorkerClosed where it was closed."""
        with self._change:
            self._check_open()
            self._holds += 1
        return Hold(self._let_go)

    def close_if_idle(self) -> bool:
        """Close it, unless something is asked or about to be; True if it was closed."""
        with self._change:
            if not self.idle or self._holds:
                return False
            self._closed = True
        self.close()
        return True

    def _check_open(self) -> None:
        """Raise WorkerClosed where it was closed."""
        if self._closed:
            raise WorkerClosed(closed(self.name))

    def _let_go(self) -> None:
        with self._change:
            self._holds -= 1
