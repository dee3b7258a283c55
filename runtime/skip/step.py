"""A step of a decoder in groups of segments: one graph of all of them, of which a route says which run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edge.runtime.skip.base import Route
from edge.runtime.skip.cache import SegmentedCache
from edge.runtime.skip.join import RUN, STREAM, stream_name
from edge.runtime.step import Binding, StepBuffers, values_of

if TYPE_CHECKING:
    from edge.runtime.engine import Tree


class SegmentsBound(Binding):
    """A graph of groups of segments, bound to one cache: what each group counts by itself, keys and values, and what
    differs from step to step when another step takes its turn.

    names: of the graph's inputs. most: tokens of its largest step. watched: the width of the residual stream, where
    that is to be seen, in steps of `most` tokens.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        names: set[str],
        cache: SegmentedCache,
        most: int,
        watched: int | None = None,
    ) -> None:
        super().__init__(session, names)
        groups = len(cache.layers)
        self._last = np.zeros((groups, 1), np.int32)
        self._total = np.zeros(groups, np.int32)
        self._counts = self._last[:, 0].data, self._total.data  # see `SegmentedCache`'s
        self._runs = np.ones(groups, bool)
        self._route: Route = tuple(range(groups))
        # What each token attends to, by group, [1, 1, S, rows], where the graph takes trees; for steps of all sizes.
        biases = [name for name in (f"attention_bias.{g}" for g in range(groups)) if name in names]
        self.bias = {name: np.zeros((1, 1, most, cache.rows), np.float32) for name in biases}
        self._masked = False  # whether a bias was written
        # The residual stream [1, S, H] that each group reads: x, and what is added to it.
        self._stream: dict[str, NDArray[np.float32]] = {}
        if watched is not None:
            streams = [value.name for value in session.get_outputs() if value.name.startswith(STREAM)]
            self._stream = {name: np.zeros((1, most, watched), np.float32) for name in streams}
        given: dict[str, NDArray[Any]] = {}
        for g in range(groups):
            given |= {
                f"{RUN}.{g}": self._runs[g : g + 1].reshape(()),
                f"seqlens_k.{g}": self._last[g],
                f"total_sequence_length.{g}": self._total[g : g + 1].reshape(()),
                f"key_positions.{g}": cache.places[g],
            }
        for name, value in values_of(self.known(given)).items():
            self._binding.bind_ortvalue_input(name, value)
        for name, value in values_of(self._stream).items():
            self._binding.bind_ortvalue_output(name, value)
        self.keep(cache)

    def known(self, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Those that the graph has an input for."""
        return {name: array for name, array in arrays.items() if name in self._names}

    def run(self, cache: SegmentedCache, route: Route) -> None:
        """Run the step whose turn it is, over tokens that the cache has taken up already."""
        if route != self._route:
            self._route = ()  # should it be interrupted on the way
            self._runs[:] = False
            self._runs[list(route)] = True
            self._route = route
        last, total = self._counts
        for group, held in enumerate(cache.held.tolist()):
            total[group], last[group] = held, held - 1
        self._session.run_with_iobinding(self._binding)

    def attend(self, cache: SegmentedCache, route: Route, tree: Tree | None, size: int) -> None:
        """Set what each of `size` tokens attends to of the rows that each group holds: all before it where there is no
        tree."""
        if tree is None:
            if self._masked:
                for written in self.bias.values():
                    written[:] = 0
            self._masked = False
            return
        self._masked = True
        for group in route:
            bias = self.bias.get(f"attention_bias.{group}")  # a feed-forward block has none
            if bias is not None:
                bias[0, 0, :size, : cache.held[group]] = tree.bias[:, cache.ran[group, : cache.length]]

    @property
    def watches(self) -> bool:
        """Whether the residual stream is to be seen."""
        return bool(self._stream)

    def stream_at(self, group: int) -> NDArray[np.float32]:
        """The residual stream [S, H] that a group read in the last step."""
        stream, added = self._stream[stream_name(group, False)], self._stream.get(stream_name(group, True))
        seen: NDArray[np.float32] = (stream if added is None else stream + added)[0]
        return seen


class SegmentStep(StepBuffers):
    """A step of S tokens, and what it has `made` of R of them (see `StepBuffers`): one of those that share what is
    `bound`."""

    def __init__(self, bound: SegmentsBound, size: int, made: NDArray[Any]) -> None:
        super().__init__(size, made)
        self.bound = bound
        self._size = size
        own = {name: bias[:, :, :size] for name, bias in bound.bias.items()}
        self._inputs, self._outputs = values_of(bound.known(self.given) | own), values_of(self.results)

    def run(
        self, cache: SegmentedCache, route: Route, tree: Tree | None, shared: SegmentsBound | None = None
    ) -> None:
        """Run the groups of `route` over what was filled in, which the cache has taken up already. shared: what else is
        bound in this run, where it is not what other steps share."""
        self.bound.attend(cache, route, tree, self._size)
        shared = shared or self.bound
        shared.take(self._inputs, self._outputs)
        shared.read(cache.cross)
        shared.run(cache, route)
