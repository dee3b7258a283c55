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
from edge.runtime.skip.join import is_stream, stream_part


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
    """A step of the sequences in the first `size` slots; logits [size, V] of the token after each.

    sessions: over graphs for several sequences, of the whole decoder or of the groups of its segments. hidden: the
    width of the residual stream that goes from group to group, through two pairs of buffers in turns.
    """

    def __init__(
        self, sessions: Sequence[ort.InferenceSession], slots: Slots, size: int, hidden: int, vocab_size: int
    ) -> None:
        groups = len(sessions)
        self._sessions = sessions
        self._tokens = np.zeros((size, 1), np.int64)
        self._positions = np.zeros((size, 1), np.int64)
        self._held = np.zeros((groups, size), np.int32)  # rows of each sequence in a group, after the step
        self._last = np.zeros((groups, size), np.int32)
        self._total = np.zeros(groups, np.int32)
        self._logits = np.empty((size, 1, vocab_size), np.float32)
        self._stream = [[np.zeros((size, 1, hidden), np.float32) for _ in ("x", "added")] for _ in range(2)]
        self._given: dict[str, NDArray[Any]] = {
            "input_ids": self._tokens,
            "position_ids": self._positions,
            "logit_rows": np.zeros(1, np.int64),
            "logits": self._logits,
        }
        for i, pair in enumerate(slots.buffers):
            for part, buffer in zip(("key", "value"), pair, strict=True):
                self._given |= {f"{name}.{i}.{part}": buffer[:size] for name in ("past", "present")}
        self._bound: list[list[ort.IOBinding | None]] = [[None, None] for _ in sessions]

    def run(self, caches: Sequence[KVCache], tokens: Sequence[int], route: Route) -> NDArray[np.float32]:
        """Append a token to each of the caches, which stand in the first slots, through the groups of `route`; the
        logits are overwritten by the next step."""
        self._tokens[:, 0] = tokens
        self._positions[:, 0] = [cache.length for cache in caches]
        for i, cache in enumerate(caches):
            self._held[:, i] = _append(cache, self._positions[i], route)
        np.subtract(self._held, 1, out=self._last)
        self._held.max(axis=1, out=self._total)
        turn = 0
        for group in route:
            binding = self._bound[group][turn]
            if binding is None:
                binding = self._bound[group][turn] = self._bind(group, turn)
            self._sessions[group].run_with_iobinding(binding)
            turn = 1 - turn
        logits: NDArray[np.float32] = self._logits[:, 0]
        return logits

    def _bind(self, group: int, turn: int) -> ort.IOBinding:
        session = self._sessions[group]
        own: dict[str, NDArray[Any]] = {
            "seqlens_k": self._last[group],
            "total_sequence_length": self._total[group : group + 1].reshape(()),
        }

        def array(name: str, turn: int) -> NDArray[Any]:
            if is_stream(name):
                return self._stream[turn][stream_part(name)]
            return own[name] if name in own else self._given[name]

        binding = session.io_binding()
        # An OrtValue made from an array shares its memory and does not keep it alive: slots and step do.
        for value in session.get_inputs():
            binding.bind_ortvalue_input(value.name, ort.OrtValue.ortvalue_from_numpy(array(value.name, turn)))
        for value in session.get_outputs():
            if value.name != "tokens":
                binding.bind_ortvalue_output(value.name, ort.OrtValue.ortvalue_from_numpy(array(value.name, 1 - turn)))
        return binding


def _append(cache: KVCache, position: NDArray[np.int64], route: Route) -> NDArray[np.int64] | int:
    """Take one token into a cache; how many rows each group holds then."""
    if isinstance(cache, SegmentedCache):
        cache.sync()
        cache.append(position, route, alike=False)
        return cache.held
    cache.positions[cache.length] = position[0]
    cache.length += 1
    return cache.length
