"""A step through units of a decoder: one graph of all of them, of which a route says which run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edge.runtime.engine.binding import CacheBinding, StepBuffers
from edge.runtime.engine.graphs.segment_cache import SegmentedCache
from edge.runtime.engine.route import NO_LIMIT, Route
from edge.runtime.engine.tree import Tree
from edge.runtime.kernels.units import LIMITS, RAN, ROUTE, of_all
from edge.runtime.providers.provider import Buffer, Session


class SegmentsBinding(CacheBinding):
    """The graph of all units, bound to one cache. Each unit's counts, keys and values are bound once; a step's own
    buffers are bound when another step ran before it.

    maximum: tokens of its largest step. watched: the units whose input, the residual stream, is recorded, in steps of
    `maximum` tokens; hidden: its width.
    """

    def __init__(
        self, session: Session, cache: SegmentedCache, maximum: int, watched: Sequence[int] = (), hidden: int = 0
    ) -> None:
        super().__init__(session)
        units, provider = len(cache.layers), cache.provider
        runs, limits = provider.allocate((units, 1), np.bool_), provider.allocate((units, 1), np.float32)
        runs.array[:] = True
        limits.array[:] = NO_LIMIT
        self._runs: NDArray[np.bool_] = runs.array
        self._limits: NDArray[np.float32] = limits.array
        self._route: Route = tuple(range(units))
        # Which units ran for each token of a step [U, S], where they decide that themselves.
        self.ran = provider.allocate((units, maximum), np.bool_) if RAN in session.outputs else None
        # What each token attends to, by unit, [1, 1, S, rows], where the graph takes trees; for steps of all sizes.
        biases = [name for name in (f"attention_bias.{u}" for u in range(units)) if name in self.names]
        self.bias = {name: provider.allocate((1, 1, maximum, cache.rows), np.float32) for name in biases}
        # The same of all units together, [U, 1, S, rows], where one input says what they attend to.
        together = of_all("attention_bias") in self.names
        self.biases = provider.allocate((units, 1, maximum, cache.rows), np.float32) if together else None
        self._masked = False  # whether a bias was written
        # The residual stream [1, S, H] that each watched unit reads: x, and what is added to it.
        self._stream: dict[str, NDArray[np.float32]] = {}
        for u in range(units):
            self.share(
                {
                    f"run.{u}": provider.part(runs, (), u),
                    f"seqlens_k.{u}": provider.part(cache.counts, (1,), units + u),
                    f"total_sequence_length.{u}": provider.part(cache.counts, (), u),
                }
            )
        self.share(
            {
                ROUTE: runs,
                LIMITS: limits,
                of_all("seqlens_k"): provider.part(cache.counts, (units, 1), units),
                of_all("total_sequence_length"): provider.part(cache.counts, (units,)),
            }
        )
        if len(cache.places):
            self.share({of_all("key_positions"): provider.adopt(cache.places)})
        for u, places in enumerate(cache.places):
            self.share({f"key_positions.{u}": provider.adopt(places)})
        for name in (f"at.{u}.{part}" for u in watched for part in ("x", "added")):
            if name in session.outputs:
                stream = provider.allocate((1, maximum, hidden), np.float32)
                self._bound.output(name, stream)
                self._stream[name] = stream.array
        self.keep(cache.memory)

    def run(self, route: Route) -> None:
        """Run the bound step through the units of `route`. The cache has appended the step's tokens already."""
        if route != self._route:
            self._route = ()  # should it be interrupted on the way
            self._runs[:] = False
            self._runs[list(route)] = True
            self._route = route
        self._bound.run()

    def attend(self, cache: SegmentedCache, route: Route, tree: Tree | None, size: int) -> None:
        """Set the rows that each of `size` tokens attends to in each unit: all rows before the token where there is no
        tree."""
        if tree is None:
            if self._masked:
                for written in [*self.bias.values(), *([] if self.biases is None else [self.biases])]:
                    written.array[:] = 0
            self._masked = False
            return
        self._masked = True
        if self.biases is not None:
            rows = cache.rows
            together = self.biases.array.reshape(-1)[: len(cache.layers) * size * rows].reshape(-1, size, rows)
            for unit in route:
                together[unit, :, : cache.held[unit]] = tree.bias[:, cache.ran[unit, : cache.length]]
            return
        for unit in route:
            bias = self.bias.get(f"attention_bias.{unit}")  # a feed-forward block has none
            if bias is not None:
                bias.array[0, 0, :size, : cache.held[unit]] = tree.bias[:, cache.ran[unit, : cache.length]]

    def limit(self, limits: NDArray[np.float32] | None) -> None:
        """Set the limits [U] by which units are left out in the next step (see `edge.runtime.kernels.units`); None:
        none is left out."""
        self._limits[:, 0] = NO_LIMIT if limits is None else limits

    @property
    def watches(self) -> bool:
        """True if the residual stream of some units is recorded."""
        return bool(self._stream)

    def stream_at(self, unit: int) -> NDArray[np.float32]:
        """The residual stream [S, H] that a unit read in the last step."""
        stream, added = self._stream[f"at.{unit}.x"], self._stream.get(f"at.{unit}.added")
        seen: NDArray[np.float32] = (stream if added is None else stream + added)[0]
        return seen


class SegmentStep(StepBuffers):
    """A step of S tokens, R of which are wanted (see `StepBuffers`): one of those that share what is `bound`."""

    def __init__(
        self, bound: SegmentsBinding, cache: SegmentedCache, size: int, rows: int, outputs: dict[str, Buffer]
    ) -> None:
        super().__init__(cache.provider, size, rows, outputs)
        self.bound = bound
        self.inputs = {name: buffer for name, buffer in self.inputs.items() if name in bound.names}
        for name, bias in bound.bias.items():
            self.inputs[name] = cache.provider.part(bias, (1, 1, size, cache.rows))
        self.ran = None if bound.ran is None else cache.provider.part(bound.ran, (len(cache.layers), size))
        if self.ran is not None:
            self.outputs = {**outputs, RAN: self.ran}
        if bound.biases is not None:
            units = len(cache.layers)
            self.inputs[of_all("attention_bias")] = cache.provider.part(bound.biases, (units, 1, size, cache.rows))

    def run(
        self, cache: SegmentedCache, route: Route, tree: Tree | None, shared: SegmentsBinding | None = None
    ) -> None:
        """Run the units of `route` over what was filled in, which the cache has taken up already. shared: what else is
        bound in this run, where it is not what other steps share."""
        self.bound.attend(cache, route, tree, self.size)
        shared = shared or self.bound
        shared.take(self.inputs, self.outputs)
        shared.read(cache.cross)
        shared.run(route)
