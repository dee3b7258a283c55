"""A step of several sequences, a token of each: one row of every product for each of them, attention each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edge.runtime.cache import KVCache, untouched
from edge.runtime.skip.base import Route
from edge.runtime.skip.cache import SegmentedCache
from edge.runtime.skip.join import RUN


class Slots:
    """Memory for the keys and values of up to `width` sequences, each in a slice of the same buffers.

    like: a cache as the engine makes it, whose shapes are taken; its own memory was never touched and goes with it.
    """

    def __init__(self, like: KVCache, width: int) -> None:
        self.width = width
        self.buffers = [(_several(key, width), _several(value, width)) for key, value in like.buffers]

    def give(self, cache: KVCache, slot: int) -> None:
        """Let a cache keep its rows in a slot, from now on."""
        cache.buffers = [(key[slot : slot + 1], value[slot : slot + 1]) for key, value in self.buffers]

    def move(self, cache: KVCache, slot: int) -> None:
        """Take a cache's rows to another slot."""
        before, rows = cache.buffers, cache.length  # a layer that tokens skipped holds fewer
        self.give(cache, slot)
        for old, new in zip(before, cache.buffers, strict=True):
            for source, target in zip(old, new, strict=True):
                target[:, :, :rows] = source[:, :, :rows]


def _several(like: NDArray[Any], width: int) -> NDArray[Any]:
    """Memory for `width` of a buffer [1, heads, rows, head_dim]."""
    return np.frombuffer(untouched(width * like.nbytes), like.dtype).reshape(width, *like.shape[1:])


class BatchStep:
    """A step of up to `size` sequences, in the first slots; logits [size, V] of the token after each.

    session: over a graph for several sequences, of the whole decoder or of the groups of its segments. groups: how many
    these are, 1 where it is the whole decoder.
    """

    def __init__(self, session: ort.InferenceSession, slots: Slots, size: int, groups: int, vocab_size: int) -> None:
        self._session = session
        self._tokens = np.zeros((size, 1), np.int64)
        self._positions = np.zeros((size, 1), np.int64)
        self._held = np.zeros((groups, size), np.int32)  # rows of each sequence in a group, after the step
        self._last = np.zeros((groups, size), np.int32)
        self._total = np.zeros(groups, np.int32)
        self._runs = np.ones(groups, bool)
        self._logits = np.empty((size, 1, vocab_size), np.float32)
        given: dict[str, NDArray[Any]] = {
            "input_ids": self._tokens,
            "position_ids": self._positions,
            "logit_rows": np.zeros(1, np.int64),
            "logits": self._logits,
        }
        for g in range(groups):
            own = {"seqlens_k": self._last[g], "total_sequence_length": self._total[g : g + 1].reshape(())}
            own |= {RUN: self._runs[g : g + 1].reshape(())}
            given |= own | {f"{name}.{g}": array for name, array in own.items()}
        for i, pair in enumerate(slots.buffers):
            for part, buffer in zip(("key", "value"), pair, strict=True):
                given |= {f"{name}.{i}.{part}": buffer[:size] for name in ("past", "present")}
        self._given = given  # an OrtValue made from an array shares its memory and does not keep it alive
        self._binding = session.io_binding()
        for value in session.get_inputs():
            self._binding.bind_ortvalue_input(value.name, ort.OrtValue.ortvalue_from_numpy(given[value.name]))
        for value in session.get_outputs():
            if value.name in given:
                self._binding.bind_ortvalue_output(value.name, ort.OrtValue.ortvalue_from_numpy(given[value.name]))

    def run(self, caches: Sequence[KVCache], tokens: Sequence[int], route: Route) -> NDArray[np.float32]:
        """Append a token to each of the caches, which stand in the first slots, through the groups of `route`; logits
        [B, V] of these, overwritten by the next step. A slot that is left over runs a token for nobody."""
        count = len(caches)
        self._tokens[:count, 0] = tokens
        self._positions[:count, 0] = [cache.length for cache in caches]
        self._positions[count:] = 0
        self._held[:, count:] = 1
        for i, cache in enumerate(caches):
            self._held[:, i] = _append(cache, self._positions[i], route)
        np.subtract(self._held, 1, out=self._last)
        self._held.max(axis=1, out=self._total)
        self._runs[:] = False
        self._runs[list(route)] = True
        self._session.run_with_iobinding(self._binding)
        logits: NDArray[np.float32] = self._logits[:count, 0]
        return logits


def _append(cache: KVCache, position: NDArray[np.int64], route: Route) -> NDArray[np.int64] | int:
    """Take one token into a cache; how many rows each group holds then."""
    if isinstance(cache, SegmentedCache):
        cache.sync()
        cache.append(position, route, alike=False)
        return cache.held
    cache.positions[cache.length] = position[0]
    cache.length += 1
    return cache.length
