"""Work in a separate thread while the caller goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """Starts `make()` in a thread at once; `result` waits for what it returns and raises what it raised."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="edge-background")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._made.append(self._make())
        except BaseException as e:
            self._error = e

    def result(self) -> T:
        """Wait for `make`, and return its result or raise its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._made[0]
