"""The KV cache: buffers of fixed capacity that the graph reads and writes in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.errors import InputError
from edge.manifest import KVLayer, KVLayout
from edge.runtime.engine.encoder import Cross
from edge.runtime.engine.route import Route
from edge.runtime.engine.states import States, StateSnapshot
from edge.runtime.providers.provider import Buffer, Provider, memory_type

POSITION = 8  # bytes of a row's position
UNASKED = 1 << 30  # bytes that no machine is asked about


Rows = list[tuple[NDArray[Any], NDArray[Any]]]
"""Keys and values of each layer, [1, heads, S, head_dim]."""


class MemoryKey:
    """An identity of a cache's memory. Steps and bindings for that memory are stored under it and freed with it."""


@dataclass(frozen=True)
class Snapshot:
    """Rows of a cache from `start` up to `end`, key and value of each layer; alike: of a `SegmentedCache`, tokens that
    ran as a prompt's do. states: of the layers that have some."""

    start: int
    end: int
    rows: list[tuple[NDArray[np.generic], NDArray[np.generic]]]
    alike: int = 0
    states: StateSnapshot | None = None


class KVCache:
    """Keys and values of one conversation, and the states of layers that have those instead. See `TextMemory`.

    `memory` holds, per layer, key and value, each [1, heads, rows, head_dim], where the provider's sessions read and
    write them in place; `buffers` is the host's view. The system hands them out page by page, so that a large capacity
    costs nothing until rows are written. Rows below `length` are valid; rolling back is moving `length`. `positions`
    [rows] holds the position in the text of each row: in a tree of tokens several rows share one. `cross` is what an
    encoder made of the input. `memory_key` is what steps on this memory are kept for. After the capacity, buffers have
    `spare` rows, which a step may write that are dropped at once. `exact` says whether steps on this cache run even
    numbers of tokens (see `Engine`); it may change between two answers. `total` is what operators are told as the
    number of rows, where that is not how many there are. `states` are those of recurrent and convolutional layers,
    where the model has some: such a text goes back only to places that were marked.

    Raises:
        InputError: the capacity is not positive, or the buffers do not fit in memory.
    """

    total: int | None = None

    def __init__(
        self,
        provider: Provider,
        layout: KVLayout,
        capacity: int,
        cross: Cross | None = None,
        spare: int = 0,
        exact: bool = False,
        states: States | None = None,
    ) -> None:
        assert states is None or not exact, "a token that fills a step up cannot be taken out of a state"
        if capacity < 1:
            raise InputError(f"A KV cache needs room for at least one token, not {capacity}.")
        self.provider = provider
        self.capacity = capacity
        self.rows = rows = capacity + spare
        self.cross = cross
        self.exact = exact
        self.states = states
        self.length = 0
        self.prompt = 0
        self.long, self.tokens = False, list[int]()  # of LongRoPE alone: which factors its text has, and the text
        self.memory_key = MemoryKey()
        self.ends = capacity  # places that a text may take: fewer than rows where several grow side by side
        self.contiguous = True  # whether row i has position i, for all i
        try:
            self.memory = self._take(layout)
            self.positions = np.arange(rows, dtype=np.int64)
        except MemoryError:
            raise InputError(
                f"A KV cache for {capacity} tokens does not fit in memory; ask for a smaller --context."
            ) from None

    def _take(self, layout: KVLayout) -> list[tuple[Buffer, Buffer]]:
        """Memory for all layers, or MemoryError."""
        allocate, dtype = self.provider.allocate, memory_type(layout.dtype)
        shapes = map(self.shapes, layout.layers)
        return [(allocate(key, dtype), allocate(value, dtype)) for key, value in shapes]

    def shapes(self, layer: KVLayer) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of a layer's key and value."""
        return ((1, layer.heads, self.rows, layer.head_dim),) * 2

    @property
    def buffers(self) -> Rows:
        """Keys and values of each layer as the host sees them."""
        return [(key.array, value.array) for key, value in self.memory]

    @property
    def reusable(self) -> int:
        """The first tokens that need not be run again when they are part of the next prompt."""
        return self.length

    @property
    def room(self) -> int:
        """Tokens that still fit into the cache."""
        return self.capacity - self.length

    def check_room(self, size: int) -> None:
        """Raise ValueError where a step of `size` tokens does not fit."""
        if not 1 <= size <= self.room:
            raise ValueError(f"a step of {size} tokens on a cache with room for {self.room}")

    def truncate(self, length: int) -> int:
        """Drop every row from `length` on, which the next step overwrites. Returns how many tokens are left: fewer
        where a state is not known any more of so many, and then the others are run again."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a cache of length {self.length} to {length}")
        self.length = length if self.states is None else self.states.truncate(length)
        return self.length

    def mark(self, *, lasting: bool = False) -> None:
        """Mark the present length as one to which the text may be truncated: before a draft, or `lasting`, before an
        answer."""
        if self.states is not None:
            self.states.mark(lasting=lasting)

    def snapshot(self, start: int = 0) -> Snapshot:
        """A copy of the rows from `start` on, and of all states."""
        rows = [(key.copy(), value.copy()) for key, value in self._part(start, self.length)]
        return Snapshot(start, self.length, rows, states=None if self.states is None else self.states.snapshot())

    def restore(self, snapshot: Snapshot) -> None:
        """Put a snapshot back after the first `snapshot.start` tokens, and drop everything after it."""
        for part, kept in zip(self._part(snapshot.start, snapshot.end), snapshot.rows, strict=True):
            part[0][:], part[1][:] = kept
        self.length = snapshot.end
        if self.states is not None:
            assert snapshot.states is not None, "another cache's snapshot"
            self.states.restore(snapshot.states)

    def first_rows(self, length: int) -> Rows:
        """A copy of the first `length` rows."""
        return [(key.copy(), value.copy()) for key, value in self._part(0, length)]

    def begin(self, rows: Rows, length: int) -> None:
        """Begin an empty cache of a model without states with the first `length` rows of another text's."""
        assert self.length == 0 and self.states is None, "rows begin an empty text"
        for part, kept in zip(self._part(0, length), rows, strict=True):
            part[0][:], part[1][:] = kept[0][:, :, :length], kept[1][:, :, :length]
        self.positions[:length] = np.arange(length)
        self.length = length

    def copy(self, other: KVCache) -> None:
        """Begin an empty cache with the whole text of another one."""
        assert self.length == 0, "a copy begins a text"
        for part, kept in zip(self._part(0, other.length), other._part(0, other.length), strict=True):
            part[0][:], part[1][:] = kept
        self.positions[: other.length] = other.positions[: other.length]
        self.length = other.length
        if self.states is not None:
            assert other.states is not None, "of another model"
            self.states.restore(other.states.snapshot())

    def _part(self, start: int, end: int) -> Rows:
        """The rows from `start` up to `end`, in place: key and value of each layer."""
        return [(key[:, :, start:end], value[:, :, start:end]) for key, value in self.buffers]

    def grow(self, position: NDArray[np.int64], route: Route) -> NDArray[np.int32] | int:
        """Append a token at a `position` [1] that runs through the units of `route`. Returns the number of rows in each
        unit."""
        self.positions[self.length] = position[0]
        self.length += 1
        if self.states is not None:
            self.states.at += 1
        return self.length

    def copy_rows(self, rows: Sequence[int] | NDArray[np.intp]) -> None:
        """Keep only `rows`, in their order, and drop all others: what is left of a tree when its branches die. States
        are those of branches, which `States.copy_rows` chooses."""
        keep = np.asarray(rows, np.intp)
        start = int(np.argmin(np.append(keep == np.arange(len(keep)), False)))  # rows before this one stay in place
        moved = keep[start:]
        for pair in self.memory:
            for buffer in pair:
                self.provider.copy_rows(buffer, moved, start)
        self.positions[start : len(keep)] = self.positions[moved]
        self.contiguous = False
        self.length = len(keep)

    def branch(self, branches: int) -> None:
        """Make room for the states of so many branches of the text."""
        if self.states is not None and self.states.widen(branches):
            self.memory_key = MemoryKey()

    def fit(self, upto: int) -> None:
        """Make room for steps up to the row `upto`. Caches of graphs for any number of rows have it already."""

    def repeat(self, written: int, upto: int) -> None:
        """Fill the rows below `upto` with copies of the first `written`: for measurements."""
        for pair in self.buffers:
            for buffer in pair:
                repeat_rows(buffer, written, upto)

    def use_memory(self, memory: list[tuple[Buffer, Buffer]]) -> None:
        """Use this memory from now on. Steps that are bound to it read what another text has besides rows, such as its
        counts, so that none is taken over."""
        self.memory, self.memory_key = memory, MemoryKey()

    def reset(self, cross: Cross | None = None, spare: int = 0) -> None:
        """Forget everything; `cross`, of the next input, takes the place of the last one."""
        self.length = 0
        if self.states is not None:
            if self.states.branches > 1:  # steps of as many tokens are bound to the states of as many branches
                self.memory_key = MemoryKey()
            self.states.reset()
        self.ends = self.capacity
        self.cross = cross or self.cross

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers at full capacity."""
        states = 0 if self.states is None else self.states.nbytes
        return states + sum(key.nbytes + value.nbytes for key, value in self.memory)


def check_memory(layout: KVLayout, rows: int, *, remote: bool, states: int = 0) -> None:
    """InputError where a cache of so many rows, with `states` bytes of states, is larger than all memory that this
    process can have: the system gives it addresses, and ends it when they are written. remote: whether keys and values
    are in a device's memory."""
    numbers = 0 if remote else sum(2 * layer.heads * layer.head_dim for layer in layout.layers)
    row = POSITION + numbers * memory_type(layout.dtype).itemsize
    if rows * row + states < UNASKED:
        return
    from edge.runtime.memory.limit import memory_limit

    limit = memory_limit()
    if limit is not None and states > limit - row:
        raise InputError(
            f"The states of one text take {states / 1e9:.1f} GB, and there are {limit / 1e9:.1f} GB of memory; export "
            "the model again, or take a smaller one."
        )
    if limit is not None and rows * row + states > limit:
        raise InputError(
            f"A KV cache for {rows} tokens takes {rows * row / 1e9:.1f} GB, and there are {limit / 1e9:.1f} GB of "
            f"memory; ask for a --context of at most {max(1, (limit - states) // row - 1)}."
        )


def repeat_rows(rows: NDArray[Any], written: int, upto: int) -> None:
    """Fill rows [1, heads, N, dim] up to row `upto` with copies of the first `written`."""
    for start in range(written, upto, written):
        end = min(start + written, upto)
        rows[:, :, start:end] = rows[:, :, : end - start]
