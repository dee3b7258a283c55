"""The engine of a decoder in segments: sessions over groups of them, of which a policy says which run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.errors import InputError
from edge.runtime.cache import KVCache
from edge.runtime.encoder import Cross
from edge.runtime.engine import Engine, Tree
from edge.runtime.providers import cpu
from edge.runtime.skip.base import Groups, Route, SkipPolicy
from edge.runtime.skip.cache import SegmentedCache
from edge.runtime.skip.join import join
from edge.runtime.skip.step import SegmentStep
from edge.runtime.step import KEPT_STEP, StepBuffers

if TYPE_CHECKING:
    from edge.runtime.plan import Plan


class SegmentedEngine(Engine):
    """An `Engine` that runs a bundle's segments in the place of its whole graph, as a policy says.

    policy: which segments run together, and which of these groups run in each step. Other arguments as of `Engine`.
    """

    def __init__(
        self,
        bundle: Bundle,
        policy: SkipPolicy,
        *,
        context: int | None = None,
        threads: int | None = None,
        plan: Plan | None = None,
        reproducible: bool = False,
    ) -> None:
        self.policy = policy
        self.groups: Groups = policy.groups
        segments = bundle.manifest.segments
        self._layers = [
            [layer for i in group if segments[i].part != "feed_forward" for layer in segments[i].layers]
            for group in self.groups
        ]
        self.everything: Route = tuple(range(len(self.groups)))
        self._forced: Route | None = None
        # What goes from group to group, which steps of all sizes on a cache share.
        self._streams: WeakKeyDictionary[KVCache, list[list[NDArray[np.float32]]]] = WeakKeyDictionary()
        super().__init__(bundle, context=context, threads=threads, plan=plan, reproducible=reproducible)

    def _open_decoder(self) -> set[str]:
        self._sessions = [self._open_group(group) for group in self.groups]
        return {value.name for session in self._sessions for value in session.get_inputs()}

    def _open_group(self, group: Sequence[int], form: Callable[[bytes], bytes] = bytes) -> ort.InferenceSession:
        """A session over segments that always run together, in some form of their graph."""
        segments = self.bundle.manifest.segments
        graph = join([self.bundle.path(segments[i].path) for i in group])
        return cpu.open_model(self.bundle, form(graph), "the segments")

    @property
    def takes_several(self) -> bool:
        return super().takes_several and not self.policy.observes

    def open_for_several(self) -> list[ort.InferenceSession]:
        if not self._several:
            from edge.runtime.batch.graph import several

            for i, group in enumerate(self.groups):
                self._sessions[i] = self._open_group(group, several)
            self._several = True
        return self._sessions

    def new_cache(self, capacity: int | None = None, cross: Cross | None = None) -> SegmentedCache:
        cache = super().new_cache(capacity, cross)
        assert isinstance(cache, SegmentedCache)
        return cache

    def make_cache(self, rows: int, cross: Cross | None = None) -> SegmentedCache:
        return SegmentedCache(self.bundle.manifest.kv, rows, self._layers, cross, spare=int(self.reproducible))

    def weight(self, group: int) -> float:
        """How many layers a group is; a half counts half."""
        segments = self.bundle.manifest.segments
        halves = ("attention", "feed_forward")
        return sum(len(segments[i].layers) / (1 + (segments[i].part in halves)) for i in self.groups[group])

    def leaving_out(self, segments: Collection[int]) -> Route:
        """The route through all groups but those of `segments`, by their indices in the manifest.

        Raises:
            InputError: a group holds some of them and others too, or the first or the last segment is among them.
        """
        route = tuple(g for g, group in enumerate(self.groups) if not set(group) <= set(segments))
        ends = {0, len(self.groups) - 1} <= set(route)
        if not ends or any(set(self.groups[g]) & set(segments) for g in route):
            raise InputError(f"The segments {sorted(segments)} cannot be left out: they run together with others.")
        return route

    def step(
        self,
        cache: KVCache,
        tokens: NDArray[np.int64],
        rows: NDArray[np.int64] | None = None,
        *,
        tree: Tree | None = None,
        route: Route | None = None,
    ) -> NDArray[np.float32]:
        """As `Engine.step`, through the groups of `route`; default: those that the policy chooses."""
        self._forced = route
        try:
            return super().step(cache, tokens, rows, tree=tree)
        finally:
            self._forced = None

    def _make_step(self, cache: KVCache, size: int, made: NDArray[Any]) -> SegmentStep:
        assert isinstance(cache, SegmentedCache), "another engine's cache"
        stream = self._streams.get(cache)
        if stream is None or size > KEPT_STEP:
            shape = 1, max(size, KEPT_STEP), self.bundle.manifest.dims.hidden_size
            stream = [[np.zeros(shape, np.float32) for _ in ("x", "added")] for _ in range(2)]
            if size <= KEPT_STEP:
                self._streams[cache] = stream
        return SegmentStep(self._sessions, cache, size, [[part[:, :size] for part in pair] for pair in stream], made)

    def _compute(self, cache: KVCache, step: StepBuffers, tree: Tree | None) -> None:
        assert isinstance(cache, SegmentedCache) and isinstance(step, SegmentStep)
        policy = self.policy
        cache.sync()
        start, prompt = cache.length, cache.length < cache.prompt
        route = self._forced or policy.route(cache, step.tokens.shape[1])
        free = self._forced is None
        observed = prompt and policy.observes and free
        cache.append(step.positions[0], route, alike=(prompt or policy.uniform) and free)
        observe = (lambda group, stream: policy.observe(cache, start, group, stream)) if observed else None
        step.run(cache, route, tree, observe)
