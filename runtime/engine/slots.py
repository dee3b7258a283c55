"""The memory of several texts, of which one step runs a token each: slots in the same buffers."""

from __future__ import annotations

import math

from edge.runtime.engine.cache import KVCache
from edge.runtime.providers.provider import Buffer

Pairs = list[tuple[Buffer, Buffer]]


class OneSlot:
    """The place of one text at a time, where steps take one alone. See `Slots`."""

    def __init__(self) -> None:
        self.caches: list[KVCache] = []

    def join(self, cache: KVCache) -> None:
        self.caches.append(cache)

    def leave(self, cache: KVCache, last: KVCache | None = None) -> None:
        self.caches.remove(cache)


class Slots:
    """Memory for up to `width` texts, each in a slice of the same buffers, shaped as in the cache `like`.

    `caches` are those of the texts that are there, in the order of their slots, of which there are `width`. They take
    the first ones, without gaps, so that a step of all reads one slice. Where steps on `like` are exact, steps of
    several texts are, too: kernels compute rows in pairs, and a last one that is alone differs in its last bits, so
    that a slot may run for nothing.
    """

    def __init__(self, like: KVCache, width: int) -> None:
        self.provider, self._multiple = like.provider, 2 if like.exact else 1
        self.caches: list[KVCache] = []
        self.width = self._filled(width)
        self._memory = [(self._of_all(key), self._of_all(value)) for key, value in like.memory]
        states = {} if like.states is None else like.states.memory
        self._states = {name: self._of_all(buffer) for name, buffer in states.items()}

    def _filled(self, texts: int) -> int:
        return -(-texts // self._multiple) * self._multiple

    def _of_all(self, like: Buffer) -> Buffer:
        """Memory for all texts of a buffer [1, ...]."""
        return self.provider.allocate((self.width, *like.shape[1:]), like.dtype)

    @property
    def size(self) -> int:
        """Slots that a step of all texts runs."""
        return self._filled(len(self.caches))

    def part(self, size: int, slot: int = 0) -> tuple[Pairs, dict[str, Buffer]]:
        """Keys and values of each layer, and states, of `size` slots from `slot` on."""

        def of(buffer: Buffer) -> Buffer:
            one = buffer.shape[1:]
            return self.provider.part(buffer, (size, *one), slot * math.prod(one))

        return [(of(key), of(value)) for key, value in self._memory], {n: of(b) for n, b in self._states.items()}

    def join(self, cache: KVCache) -> None:
        """Let a cache keep its text in the next slot, from now on."""
        self._move(cache, len(self.caches))
        self.caches.append(cache)

    def leave(self, cache: KVCache, last: KVCache | None = None) -> None:
        """Free the slot of a cache, which the last one takes. last: the last one where it is to stay that: the one
        before it takes the slot, and it that one's."""
        slot, end = self.caches.index(cache), len(self.caches) - 1
        for other in (end,) if last is None else (end - 1, end):
            if other > slot:
                self._move(self.caches[other], slot)
                self.caches[slot], slot = self.caches[other], other
        self.caches.pop()

    def _move(self, cache: KVCache, slot: int) -> None:
        """Take what a cache has of its text to a slot."""
        before = cache.memory if cache.length else []  # a cache in a device's memory takes none before it is used
        states = None if cache.states is None else cache.states.snapshot()
        memory, mine = self.part(1, slot)
        cache.use_memory(memory)
        for old, new in zip(before, memory, strict=bool(before)):
            for source, target in zip(old, new, strict=True):
                self.provider.copy(source, target, cache.length)  # a layer that tokens skipped has fewer rows
        if cache.states is not None and states is not None:
            cache.states.memory = mine
            cache.states.restore(states)
