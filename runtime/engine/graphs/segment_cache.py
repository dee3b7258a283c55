"""The KV cache of a decoder that runs in units: a layer holds rows only of the tokens that ran through it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edge.manifest import KVLayout
from edge.runtime.engine.binding import StepBuffers
from edge.runtime.engine.cache import KVCache, Snapshot
from edge.runtime.engine.encoder import Cross
from edge.runtime.engine.route import Route
from edge.runtime.providers.provider import Provider


class SegmentedCache(KVCache):
    """Keys and values whose layers may hold different tokens.

    `length` counts tokens. The rows of a layer stand without gaps, in the tokens' order: attention reads the first so
    many, so that a token which a layer skipped is not there for it. All layers of a unit hold the same tokens: `held`
    [U] says how many, `last` [U] is one less, and `ran` [U, rows] says which. `counts` [2, U] is what sessions read of
    the first two. `places` [U, rows] holds the position in the text of each row, where the graph reads it. `forced` is
    the route of the next steps, where somebody else than the policy chooses it; `last_step` what ran last, and through
    which route. As long as every token ran through all units, nothing is counted by unit: a step of the whole model
    costs no more than without units.

    layers: of each unit; none of a feed-forward block. placed: whether the graph reads `places`.
    """

    def __init__(
        self,
        provider: Provider,
        layout: KVLayout,
        capacity: int,
        layers: Sequence[Sequence[int]],
        cross: Cross | None = None,
        spare: int = 0,
        exact: bool = False,
        placed: bool = True,
    ) -> None:
        super().__init__(provider, layout, capacity, cross, spare, exact)
        self.layers = layers
        self.forced: Route | None = None
        self.last_step: tuple[Route, StepBuffers] | None = None
        self.counts = provider.allocate((2, len(layers)), np.int32)
        self.held, self.last = self._counts = self.counts.array
        self.last[:] = -1
        self._ran = np.zeros((self.rows, len(layers)), bool).T  # what is written in a step lies together
        self.places = np.zeros((len(layers) if placed else 0, self.rows), np.int64)
        self._runs: dict[Route, NDArray[np.int32]] = {}  # [U]: 1 for each unit that runs
        self._known = 0  # tokens that `ran` says something about
        self._alike = 0  # of these the first ones that ran as a prompt does
        self._whole = 0  # of these the first ones that ran through all units
        self._noted = 0  # of the whole ones those that `_ran` has already

    def sync(self) -> None:
        """Follow `length`, which somebody may have lowered."""
        if self.length < self._known:
            if self.length <= self._whole:
                self._hold(self.length)
            else:
                self._counts -= self._ran[:, self.length : self._known].sum(axis=1, dtype=np.int32)
            self._known = self.length
            self._alike = min(self._alike, self.length)

    @property
    def ran(self) -> NDArray[np.bool_]:
        """[U, rows]: which tokens ran through each unit, of those that are known."""
        if self._noted < self._whole:
            self._ran[:, self._noted : self._whole] = True
            self._noted = self._whole
        return self._ran

    def _hold(self, tokens: int) -> None:
        """All units hold the first `tokens`, and nothing else."""
        self.held.fill(tokens)
        self.last.fill(tokens - 1)
        self._whole = tokens
        self._noted = min(self._noted, tokens)

    def append(self, positions: NDArray[np.int64], route: Route, *, alike: bool) -> None:
        """Tokens at `positions` [S] run through the units of `route`; `alike`: as every token of a prompt does."""
        start, end = self._known, self._known + len(positions)
        self.positions[start:end] = positions
        if self._whole == start and len(route) == len(self.layers):
            if len(self.places):
                self.places[:, start:end] = positions
            self._hold(end)
        else:
            for unit in route if len(self.places) else ():
                self.places[unit, self.held[unit] : self.held[unit] + len(positions)] = positions
            runs = self._runs.get(route)
            if runs is None:
                runs = self._runs[route] = np.zeros(len(self.held), np.int32)
                runs[list(route)] = 1
            self._ran[:, start:end] = runs[:, None]
            self._counts += runs if len(positions) == 1 else runs * np.int32(len(positions))
        if alike and self._alike == start:
            self._alike = end
        self._known = self.length = end

    def grow(self, position: NDArray[np.int64], route: Route) -> NDArray[np.int32]:
        self.sync()
        self.append(position, route, alike=False)
        held: NDArray[np.int32] = self.held
        return held

    def snapshot(self, start: int = 0) -> Snapshot:
        """See `KVCache`; of a cache all of whose tokens ran through all layers."""
        self.sync()
        assert (self.held == self.length).all(), "some layers hold fewer tokens"
        return dataclasses.replace(super().snapshot(start), alike=self._alike)

    def restore(self, snapshot: Snapshot) -> None:
        super().restore(snapshot)
        self._known = self.length
        self._noted = min(self._noted, snapshot.start)
        self._hold(self.length)
        self._alike = snapshot.alike

    @property
    def reusable(self) -> int:
        """The first tokens whose rows are those that a new prompt would get: an answer's, of which some layers were
        skipped, are run again when it becomes part of the next prompt."""
        return min(self._alike, self.length)

    def copy_rows(self, rows: Sequence[int] | NDArray[np.intp]) -> None:
        self.sync()
        keep = np.asarray(rows, np.intp)
        together, whole = self.ran, self._whole == self.length
        for unit, layers in enumerate(self.layers):
            ran = together[unit, : self.length]
            kept = ran[keep]
            moved = (np.cumsum(ran) - 1)[keep[kept]]
            for layer in layers:
                for buffer in self.memory[layer]:
                    self.provider.copy_rows(buffer, moved, 0)
            if len(self.places):
                self.places[unit, : len(moved)] = self.places[unit, moved]
            together[unit, : len(keep)] = kept
            self.held[unit], self.last[unit] = len(moved), len(moved) - 1
        self.positions[: len(keep)] = self.positions[keep]
        in_place = int(np.argmin(np.append(keep == np.arange(len(keep)), False)))
        self._known = self.length = len(keep)
        self._whole = self._noted = len(keep) if whole else 0
        self._alike = min(self._alike, in_place)
