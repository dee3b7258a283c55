"""A model that does one thing at a time: turns one text into another, listens, makes vectors, or ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from edge.serve.hold import Held
from edge.serve.refusal import too_many

if TYPE_CHECKING:
    from edge.runtime.embed.text_model import TextModel
    from edge.runtime.speech.transcribe import Transcriber
    from edge.runtime.text2text import Text2Text

T = TypeVar("T")
CLOSE_S = 30.0


class Single(Held):
    """Runs what is asked of a model, one after another, each in the thread that asks.

    Args:
        model: it is closed with this.
        queue: how many may wait at most.
    """

    def __init__(self, model: Text2Text | Transcriber | TextModel, *, queue: int) -> None:
        super().__init__(model.bundle.manifest.name)
        self.model, self._queue = model, queue
        self._turn = threading.Lock()
        self._there = 0  # that run, or wait

    def run(self, work: Callable[[], T]) -> T:
        """Wait for the turn, and run something that uses the model.

        Raises:
            Refusal: too many wait.
            WorkerClosed: the model was closed.
        """
        with self._change:
            self._check_open()
            if self._there > self._queue:
                raise too_many(self._there - 1, self.name, self._queue)
            self._there += 1
        try:
            with self._turn:
                return work()
        finally:
            with self._change:
                self._there -= 1

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return max(0, self._there - 1)

    @property
    def growing(self) -> int:
        """1 while something runs, else 0."""
        return min(1, self._there)

    @property
    def kept_bytes(self) -> int:
        """0: nothing of one text is kept for another."""
        return 0

    @property
    def idle(self) -> bool:
        """True if nothing is asked."""
        return not self._there

    @property
    def dead(self) -> bool:
        """True if it answers no more."""
        return self._closed

    def close(self) -> None:
        """Let what runs end, and give the model's memory back."""
        with self._change:
            self._closed = True
        if not self._turn.acquire(timeout=CLOSE_S):
            self.model.close()  # by which it ends at its next step
            return
        self._turn.release()
        self.model.close()
