"""The KV cache of a decoder that runs in groups: a layer holds rows only of the tokens that ran through it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge.manifest import KVLayout
from edge.runtime.cache import KVCache

if TYPE_CHECKING:
    from edge.runtime.encoder import Cross
    from edge.runtime.skip.base import Route


@dataclass(frozen=True)
class Aside:
    """Rows of a cache's end, key and value of each layer [1, heads, rows, dim], and how many tokens were alike."""

    rows: list[tuple[NDArray[np.generic], NDArray[np.generic]]]
    alike: int


class SegmentedCache(KVCache):
    """Keys and values whose layers may hold different tokens.

    `length` counts tokens. The rows of a layer stand without gaps, in the tokens' order: attention reads the first so
    many, so that a token which a layer skipped is not there for it. All layers of a group hold the same tokens: `held`
    [G] says how many, `ran` [G, rows] which, and `places` [G, rows] the position in the text of each row. `forced` is
    the route of the next steps, where somebody else than the policy chooses it.

    layers: of each group.
    """

    def __init__(
        self,
        layout: KVLayout,
        capacity: int,
        layers: Sequence[Sequence[int]],
        cross: Cross | None = None,
        spare: int = 0,
        exact: bool = False,
    ) -> None:
        super().__init__(layout, capacity, cross, spare, exact)
        self.layers = layers
        self.forced: Route | None = None
        self.held = np.zeros(len(layers), np.int64)
        self.ran = np.zeros((len(layers), self.rows), bool)
        self.places = np.zeros((len(layers), self.rows), np.int64)
        # One token's entries through these: what numpy needs for an index array is out of the processor's caches.
        self._one = self.held.data, self.ran.data, self.places.data
        self._indices: dict[Route, NDArray[np.intp]] = {}
        self._known = 0  # tokens that `ran` says something about
        self._alike = 0  # of these the first ones that ran as a prompt does

    def sync(self) -> None:
        """Follow `length`, which somebody may have lowered."""
        if self.length < self._known:
            self._known = self.length
            self._alike = min(self._alike, self.length)
            self.held[:] = np.count_nonzero(self.ran[:, : self.length], axis=1)

    def append(self, positions: NDArray[np.int64], route: Route, *, alike: bool) -> None:
        """Tokens at `positions` [S] run through the groups of `route`; `alike`: as every token of a prompt does."""
        size = len(positions)
        start, end = self._known, self._known + size
        self.positions[start:end] = positions
        if size == 1:
            self._append_one(int(positions[0]), start, route)
        else:
            groups = self._indices.get(route)
            if groups is None:
                groups = self._indices[route] = np.array(route, np.intp)[:, None]
            rows = self.held[groups]  # [groups, 1]
            self.places[groups, rows + np.arange(size)] = positions
            self.ran[:, start:end] = False
            self.ran[groups, np.arange(start, end)] = True
            self.held[groups] = rows + size
        if alike and self._alike == start:
            self._alike = end
        self._known = self.length = end

    def _append_one(self, position: int, start: int, route: Route) -> None:
        held, ran, places = self._one
        for group in range(len(held)):
            ran[group, start] = False
        for group in route:
            ran[group, start] = True
            row = held[group]
            places[group, row] = position
            held[group] = row + 1

    def put_aside(self, start: int) -> Aside:
        """A copy of the rows from `start` on, of a cache all of whose tokens ran through all layers."""
        self.sync()
        assert (self.held == self.length).all(), "some layers hold fewer tokens"
        end = self.length
        rows = [(key[:, :, start:end].copy(), value[:, :, start:end].copy()) for key, value in self.buffers]
        return Aside(rows, self._alike)

    def put_back(self, start: int, aside: Aside) -> None:
        """Hold what was put aside again behind the first `start` tokens, and nothing else."""
        end = start + aside.rows[0][0].shape[2]
        for buffers, rows in zip(self.buffers, aside.rows, strict=True):
            for buffer, kept in zip(buffers, rows, strict=True):
                buffer[:, :, start:end] = kept
        self.ran[:, start:end] = True
        self.held[:] = self._known = self.length = end
        self._alike = aside.alike

    @property
    def reusable(self) -> int:
        """The first tokens whose rows are those that a new prompt would get: an answer's, of which some layers were
        skipped, are run again when it becomes part of the next prompt."""
        return min(self._alike, self.length)

    def compact(self, rows: Sequence[int] | NDArray[np.intp]) -> None:
        self.sync()
        keep = np.asarray(rows, np.intp)
        for group, layers in enumerate(self.layers):
            ran = self.ran[group, : self.length]
            kept = ran[keep]
            moved = (np.cumsum(ran) - 1)[keep[kept]]
            for layer in layers:
                for buffer in self.buffers[layer]:
                    buffer[:, :, : len(moved)] = buffer[:, :, moved]
            self.places[group, : len(moved)] = self.places[group, moved]
            self.ran[group, : len(keep)] = kept
            self.held[group] = len(moved)
        self.positions[: len(keep)] = self.positions[keep]
        in_place = int(np.argmin(np.append(keep == np.arange(len(keep)), False)))
        self._known = self.length = len(keep)
        self._alike = min(self._alike, in_place)
