"""The KV cache in a device's memory, which is taken once and given to one text after the other."""

from __future__ import annotations

import weakref
from collections import defaultdict

import numpy as np

from edge.errors import InputError
from edge.manifest import KVLayout
from edge.runtime.engine.cache import KVCache, MemoryKey
from edge.runtime.engine.encoder import Cross
from edge.runtime.providers.provider import Buffer, Provider

SMALLEST = 256  # rows; caches have these, doubled until a text fits
Memory = list[tuple[Buffer, Buffer]]


class DeviceRows(MemoryKey):
    """Memory for keys and values of `rows` rows, for one text at a time. What a device recorded of steps over it stays
    valid for the next text."""

    def __init__(self, memory: Memory, rows: int) -> None:
        self.memory, self.rows = memory, rows
        self.positions = np.arange(rows, dtype=np.int64)


class DeviceMemoryPool:
    """Memory that no text has at the moment. limit: rows of the largest."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free: defaultdict[int, list[DeviceRows]] = defaultdict(list)  # by rows

    def rows_for(self, rows: int) -> int:
        """Rows of the memory for a text of `rows`: few sizes, so that memory is found again."""
        size = SMALLEST
        while size < rows:
            size *= 2
        return max(rows, min(size, self._limit))

    def take(self, rows: int) -> DeviceRows | None:
        """Memory of this size that is free; other memory goes, which would only take room."""
        found = self._free[rows].pop() if self._free[rows] else None
        for other in [size for size in self._free if size != rows]:
            del self._free[other]
        return found

    def leave(self, found: DeviceRows) -> None:
        self._free[found.rows].append(found)

    def clear(self) -> None:
        self._free.clear()


class DeviceCache(KVCache):
    """See `KVCache`. Memory is taken when it is first used, and operators are told of all its rows, which one recorded
    step can be replayed with."""

    def __init__(
        self, provider: Provider, layout: KVLayout, capacity: int, pool: DeviceMemoryPool, cross: Cross | None = None
    ) -> None:
        self._pool, self._layout = pool, layout
        self._memory: Memory | None = None
        self._key: MemoryKey | None = None
        super().__init__(provider, layout, capacity, cross, pool.rows_for(capacity) - capacity)
        self.total = self.rows

    def _take(self, layout: KVLayout) -> Memory:
        return []  # not before it is used

    @property
    def memory(self) -> Memory:
        if self._memory is None:
            self._settle()
        assert self._memory is not None
        return self._memory

    @memory.setter
    def memory(self, memory: Memory) -> None:
        self._memory = memory or None

    @property
    def memory_key(self) -> MemoryKey:
        if self._memory is None:
            self._settle()
        assert self._key is not None
        return self._key

    @memory_key.setter
    def memory_key(self, memory_key: MemoryKey) -> None:
        self._key = memory_key

    def repeat(self, written: int, upto: int) -> None:
        """Nothing: what rows hold makes no difference to how long a device takes."""

    def _settle(self) -> None:
        """Take memory that an earlier text had, or new one."""
        found = self._pool.take(self.rows)
        if found is None:
            try:
                found = DeviceRows(super()._take(self._layout), self.rows)
            except MemoryError:
                raise InputError(self._refusal()) from None
        self._memory, self._key, self.positions = found.memory, found, found.positions
        self.positions[:] = np.arange(self.rows)
        weakref.finalize(self, self._pool.leave, found)

    def _refusal(self) -> str:
        """The sentence for a device without room, with what it would have room for."""
        rows, most = self.rows, self.capacity
        while rows > 1:
            rows //= 2
            self.rows = rows
            try:
                super()._take(self._layout)
            except MemoryError:
                continue
            return (
                f"The device has no memory left for a KV cache of {most} tokens, and would have some for {rows}; "
                f"choose --context {rows}."
            )
        return f"The device has no memory left for a KV cache of {most} tokens; end other programs that use it."
