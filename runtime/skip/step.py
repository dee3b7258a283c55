"""A step of some groups of segments: inputs and outputs of every session, bound once for each shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edge.runtime.skip.base import Route
from edge.runtime.skip.cache import SegmentedCache
from edge.runtime.skip.join import is_stream, stream_part
from edge.runtime.step import StepBuffers

if TYPE_CHECKING:
    from edge.runtime.encoder import Cross
    from edge.runtime.engine import Tree

Observer = Callable[[int, NDArray[np.float32]], None]


class SegmentStep(StepBuffers):
    """A step of S tokens with R rows of logits [1, R, V], `made`, on one cache.

    The residual stream goes from group to group through two pairs of buffers [1, S, H] in turns, `stream`: x and what
    is added to it. A group reads one pair and writes the other. Which one that is depends on how many ran before it, so
    a group has a binding for each, made when it is first needed.
    """

    def __init__(
        self,
        sessions: Sequence[ort.InferenceSession],
        cache: SegmentedCache,
        size: int,
        stream: list[list[NDArray[np.float32]]],
        made: NDArray[Any],
    ) -> None:
        super().__init__(size, made)
        self._sessions = sessions
        self._names = [{value.name for value in session.get_inputs()} for session in sessions]
        self._stream = stream
        self._seqlens_k = np.zeros((len(sessions), 1), np.int32)
        self._total = np.zeros(len(sessions), np.int32)
        self._bias: dict[int, NDArray[np.float32]] = {}  # by group, [1, 1, S, rows]
        self._masked = False  # whether a bias was written
        self._cross: Cross | None = None
        self._bound: list[list[ort.IOBinding | None]] = [[None, None] for _ in sessions]
        self._caches: dict[str, NDArray[Any]] = {}
        for i, (key, value) in enumerate(cache.buffers):
            for name in ("past", "present"):
                self._caches |= {f"{name}.{i}.key": key, f"{name}.{i}.value": value}

    def run(self, cache: SegmentedCache, route: Route, tree: Tree | None, observe: Observer | None = None) -> None:
        """Run the groups of `route` over tokens that the cache has taken up already. `observe` gets each group's index
        and the residual stream [S, H] that it is about to read."""
        if cache.cross is not self._cross:
            self._cross = cache.cross
            self._bound = [[None, None] for _ in self._sessions]
        if tree is not None or self._masked:
            self._attend(cache, route, tree)
        self._total[:] = cache.held
        self._seqlens_k[:, 0] = cache.held
        self._seqlens_k -= 1
        turn = 0
        for group in route:
            binding = self._bound[group][turn]
            if binding is None:
                binding = self._bound[group][turn] = self._bind(cache, group, turn)
            if observe is not None and group:
                x, added = self._stream[turn]
                observe(group, x[0] + added[0])
            self._sessions[group].run_with_iobinding(binding)
            turn = 1 - turn

    def _bind(self, cache: SegmentedCache, group: int, turn: int) -> ort.IOBinding:
        session = self._sessions[group]
        given: dict[str, NDArray[Any]] = {
            "input_ids": self.tokens,
            "position_ids": self.positions,
            "seqlens_k": self._seqlens_k[group],
            "total_sequence_length": self._total[group : group + 1].reshape(()),
            "logit_rows": self.rows,
            "key_positions": cache.places[group],
            "logits": self.made,
            **self._caches,
        }
        if "attention_bias" in self._names[group]:
            shape = 1, 1, self.tokens.shape[1], cache.rows
            given["attention_bias"] = self._bias.setdefault(group, np.zeros(shape, np.float32))
        if self._cross is not None:
            for i, pair in enumerate(self._cross.buffers):
                given |= {f"cross.{i}.{part}": buffer for part, buffer in zip(("key", "value"), pair, strict=True)}

        def array(name: str, turn: int) -> NDArray[Any]:
            return self._stream[turn][stream_part(name)] if is_stream(name) else given[name]

        binding = session.io_binding()
        # An OrtValue made from an array shares its memory and does not keep it alive: cache and step do.
        for value in session.get_inputs():
            binding.bind_ortvalue_input(value.name, ort.OrtValue.ortvalue_from_numpy(array(value.name, turn)))
        for value in session.get_outputs():
            binding.bind_ortvalue_output(value.name, ort.OrtValue.ortvalue_from_numpy(array(value.name, 1 - turn)))
        return binding

    def _attend(self, cache: SegmentedCache, route: Route, tree: Tree | None) -> None:
        """Set what each token attends to of the rows that each group holds: all before it where there is no tree."""
        for group in route:
            if "attention_bias" not in self._names[group]:
                continue
            shape = 1, 1, self.tokens.shape[1], cache.rows
            bias = self._bias.setdefault(group, np.zeros(shape, np.float32))
            if tree is None:
                bias[:] = 0
            else:
                bias[0, 0, :, : cache.held[group]] = tree.bias[:, cache.ran[group, : cache.length]]
        self._masked = tree is not None
