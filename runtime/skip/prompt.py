"""Policies that read the prompt's residual stream and then decide for the whole answer."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.runtime.engine.graphs.segment_cache import SegmentedCache
from edge.runtime.engine.route import Route, all_units
from edge.runtime.skip.skip_policy import MANY, SkipPolicy


class PromptPolicy(SkipPolicy):
    """Stores a score for every token and candidate, and leaves out the candidates that `choose` picks by their means
    over the prompt.

    The prompt itself runs through everything. Scores of tokens stay as long as their rows do, so that a chat's next
    turn, which runs only what is new, decides by the whole conversation.

    candidates: the units that may be left out. watched: see `SkipPolicy`.
    """

    def __init__(self, bundle: Bundle, candidates: Sequence[int], watched: Sequence[int]) -> None:
        self.candidates, self.watched = list(candidates), watched
        self.places = {unit: i for i, unit in enumerate(self.candidates)}
        self._everything: Route = all_units(bundle)
        self._scores: WeakKeyDictionary[SegmentedCache, NDArray[np.float32]] = WeakKeyDictionary()
        self._routes: WeakKeyDictionary[SegmentedCache, Route] = WeakKeyDictionary()

    def scores(self, cache: SegmentedCache) -> NDArray[np.float32]:
        """A score [candidates, rows] for each token of the cache."""
        found = self._scores.get(cache)
        if found is None:
            found = self._scores[cache] = np.zeros((len(self.candidates), cache.rows), np.float32)
        return found

    def choose(self, means: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Choose the candidates [candidates] to leave out, by the mean score of each."""
        raise NotImplementedError

    def means(self, cache: SegmentedCache) -> NDArray[np.float32]:
        """The mean score of each candidate over the prompt."""
        means: NDArray[np.float32] = self.scores(cache)[:, : cache.prompt].mean(axis=1)
        return means

    def max_exact_step(self, cache: SegmentedCache) -> int:
        return MANY if cache.length >= cache.prompt else cache.prompt - cache.length

    def route(self, cache: SegmentedCache, size: int) -> Route:
        if cache.length < cache.prompt or not cache.prompt:
            self._routes.pop(cache, None)
            return self._everything
        route = self._routes.get(cache)
        if route is None:
            out = {self.candidates[i] for i in np.flatnonzero(self.choose(self.means(cache)))}
            route = self._routes[cache] = tuple(g for g in self._everything if g not in out)
        return route
