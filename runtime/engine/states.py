"""States: what recurrent and convolutional layers keep of a text, whatever its length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.errors import InputError
from edge.manifest import Manifest
from edge.runtime.limits import LASTING
from edge.runtime.providers.provider import Buffer, Provider


@dataclass(frozen=True)
class StateSnapshot:
    """A copy of all states after `at` tokens."""

    at: int
    arrays: list[NDArray[Any]]


class States:
    """The states of one text, or of several branches of it. See `TextMemory`.

    `memory` holds them by their names in the graph, each [B, ...], where sessions read and write them in place; the
    first `branches` of them are used. `at` is how many tokens each has taken up: a step adds its own. A state cannot be
    cut: `truncate` goes back to the last `mark` that is early enough, or to the beginning.

    shapes: of each state, without branches.
    """

    branches = 1

    def __init__(self, provider: Provider, shapes: Mapping[str, Sequence[int]]) -> None:
        self._provider = provider
        self.memory = self._allocate(shapes, 1)
        self._lasting: list[StateSnapshot] = []
        self._latest: StateSnapshot | None = None
        self.at = 0  # memory begins with zeros

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.memory.values())

    def widen(self, branches: int) -> bool:
        """Make room for so many branches. Returns True if that is other memory."""
        if all(buffer.shape[0] >= branches for buffer in self.memory.values()):
            return False
        before = self.snapshot()
        self.memory = self._allocate({name: buffer.shape[1:] for name, buffer in self.memory.items()}, branches)
        self.restore(before)
        return True

    def _allocate(self, shapes: Mapping[str, Sequence[int]], branches: int) -> dict[str, Buffer]:
        try:
            return {name: self._provider.allocate((branches, *shape), np.float32) for name, shape in shapes.items()}
        except MemoryError:
            raise InputError("The states of this model's layers do not fit in memory; take a smaller model.") from None

    def part(self) -> dict[str, Buffer]:
        """The states of the branches that are used."""
        part, count = self._provider.part, self.branches
        return {name: part(buffer, (count, *buffer.shape[1:])) for name, buffer in self.memory.items()}

    def reset(self) -> None:
        """Forget everything."""
        self._lasting, self._latest = [], None
        self._begin()

    def _begin(self) -> None:
        for buffer in self.memory.values():
            buffer.array[:] = 0
        self.at, self.branches = 0, 1

    def mark(self, *, lasting: bool = False) -> None:
        """Remember this place, to which the text may go back; until the next one is marked, or as one of the last
        `LASTING`."""
        made = self.snapshot()
        if lasting:
            self._lasting = [*(mark for mark in self._lasting if mark.at < self.at), made][-LASTING:]
        else:
            self._latest = made

    def snapshot(self, start: int = 0) -> StateSnapshot:
        return StateSnapshot(self.at, [buffer.array[: self.branches].copy() for buffer in self.memory.values()])

    def restore(self, snapshot: StateSnapshot) -> None:
        for buffer, kept in zip(self.memory.values(), snapshot.arrays, strict=True):
            self.branches = len(kept)
            buffer.array[: self.branches] = kept
        self.at = snapshot.at

    def truncate(self, length: int) -> int:
        if length < self.at:
            marks = [*self._lasting, *([] if self._latest is None else [self._latest])]
            early = [mark for mark in marks if mark.at <= length]
            if early:
                self.restore(max(early, key=lambda mark: mark.at))
            else:
                self._begin()
            # What follows is another text.
            self._lasting = [mark for mark in self._lasting if mark.at <= self.at]
            self._latest = None
        return self.at

    def copy_rows(self, rows: Sequence[int] | NDArray[np.intp]) -> None:
        branches = np.asarray(rows, np.intp)
        for buffer in self.memory.values():
            buffer.array[: len(branches)] = buffer.array[branches]
        self.branches = len(branches)


def states_of(manifest: Manifest, provider: Provider) -> States | None:
    """The states of a text that has not begun; None where the model's layers have none."""
    shapes = {state.input: state.shape for state in manifest.states}
    return States(provider, shapes) if shapes else None


def written(states: Mapping[str, Buffer]) -> dict[str, Buffer]:
    """States by the names of the outputs that write them."""
    return {name.replace("past.", "present.", 1): buffer for name, buffer in states.items()}
