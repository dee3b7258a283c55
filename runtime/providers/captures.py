"""Recorded steps of a session: CUDA graphs, which onnxruntime records and replays by numbers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

NONE = -1  # the number of a run that is not recorded
SEEN = 2  # runs over the same memory after which the next is recorded
MOST = 64  # recorded steps that are kept
REMEMBERED = 256  # of memory that was seen


class Captures:
    """The recorded steps of one session. A step is identified by all that it reads and writes: shapes and addresses.

    release: lets the session forget the step of a number.
    """

    def __init__(self, release: Callable[[int], None], most: int = MOST) -> None:
        self._release, self._most = release, most
        self._numbers: OrderedDict[Hashable, int] = OrderedDict()  # the least recently replayed first
        self._seen: OrderedDict[Hashable, int] = OrderedDict()
        self._next = 1

    def __contains__(self, step: Hashable) -> bool:
        return step in self._numbers or step in self._seen

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, step: Hashable) -> int:
        """Return the number under which a run of this step is recorded or replayed; `NONE` while the step is new."""
        if step in self._numbers:
            self._numbers.move_to_end(step)
            return self._numbers[step]
        seen = self._seen.pop(step, 0) + 1
        if seen <= SEEN:
            self._seen[step] = seen
            while len(self._seen) > REMEMBERED:
                self._seen.popitem(last=False)
            return NONE
        while len(self._numbers) >= self._most:
            _, oldest = self._numbers.popitem(last=False)
            self._release(oldest)
        self._numbers[step] = number = self._next
        self._next += 1
        return number

    def drop(self, steps: set[Hashable]) -> None:
        """Forget steps whose memory is about to be freed."""
        for step in steps:
            self._seen.pop(step, None)
            if step in self._numbers:
                self._release(self._numbers.pop(step))
