"""The engine of a decoder in segments: groups of them, of which a policy says which run."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

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
from edge.runtime.skip.step import SegmentsBound, SegmentStep
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
        exact: bool = False,
    ) -> None:
        self.policy = policy
        self.groups: Groups = policy.groups
        segments = bundle.manifest.segments
        self._layers = [
            [layer for i in group if segments[i].part != "feed_forward" for layer in segments[i].layers]
            for group in self.groups
        ]
        self.everything: Route = tuple(range(len(self.groups)))
        super().__init__(bundle, context=context, threads=threads, plan=plan, exact=exact)

    def _open_decoder(self) -> set[str]:
        name, graph = self._decoder()
        self._session = cpu.open_model(self.bundle, graph, name)
        return {value.name for value in self._session.get_inputs()}

    def _decoder(self) -> tuple[str, bytes]:
        segments = self.bundle.manifest.segments
        groups = [[self.bundle.path(segments[i].path) for i in group] for group in self.groups]
        return "the segments", join(groups, self.policy.optional, watched=self.policy.observes)

    @property
    def takes_several(self) -> bool:
        return super().takes_several and not self.policy.observes

    def steady(self, cache: KVCache) -> int:
        assert isinstance(cache, SegmentedCache), "another engine's cache"
        return min(super().steady(cache), self.policy.steady(cache))

    def new_cache(self, capacity: int | None = None, cross: Cross | None = None) -> SegmentedCache:
        cache = super().new_cache(capacity, cross)
        assert isinstance(cache, SegmentedCache)
        return cache

    def make_cache(self, rows: int, cross: Cross | None = None) -> SegmentedCache:
        spare = int(self.exact)
        return SegmentedCache(self.bundle.manifest.kv, rows, self._layers, cross, spare=spare, exact=self.exact)

    def weight(self, group: int) -> float:
        """How many layers a group is; a half counts half."""
        segments = self.bundle.manifest.segments
        halves = ("attention", "feed_forward")
        return sum(len(segments[i].layers) / (1 + (segments[i].part in halves)) for i in self.groups[group])

    def leaving_out(self, segments: Collection[int]) -> Route:
        """The route through all groups but those of `segments`, by their indices in the manifest.

        Raises:
            InputError: a group holds some of them and others too, or they are among those that always run.
        """
        route = tuple(g for g, group in enumerate(self.groups) if not set(group) <= set(segments))
        always = {*self.everything}.difference(self.policy.optional) | {0, len(self.groups) - 1}
        if not always <= set(route) or any(set(self.groups[g]) & set(segments) for g in route):
            raise InputError(f"The segments {sorted(segments)} cannot be left out: they run together with others.")
        return route

    @contextmanager
    def through(self, cache: KVCache, route: Route) -> Iterator[None]:
        """The steps on `cache` inside run the groups of `route`; those on other caches what the policy chooses."""
        assert isinstance(cache, SegmentedCache), "another engine's cache"
        cache.forced = route
        try:
            yield
        finally:
            cache.forced = None

    def _make_step(self, cache: KVCache, size: int, made: NDArray[Any]) -> SegmentStep:
        assert isinstance(cache, SegmentedCache), "another engine's cache"
        if size > KEPT_STEP:
            return SegmentStep(self._bind(cache, size, watched=self._observing(cache)), size, made)
        kept = self._bound.setdefault(cache, {})
        bound: SegmentsBound | None = kept.get(made.dtype.char)
        if bound is None:
            bound = kept[made.dtype.char] = self._bind(cache, KEPT_STEP)
        return SegmentStep(bound, size, made)

    def _bind(self, cache: SegmentedCache, most: int, watched: bool = False) -> SegmentsBound:
        hidden = self.bundle.manifest.dims.hidden_size if watched else None
        return SegmentsBound(self._session, self._inputs, cache, most, hidden)

    def _observing(self, cache: SegmentedCache) -> bool:
        """Whether the policy wants to see the residual stream of the next step."""
        return cache.forced is None and self.policy.observes and cache.length < cache.prompt

    def _compute(self, cache: KVCache, step: StepBuffers, tree: Tree | None) -> None:
        assert isinstance(cache, SegmentedCache) and isinstance(step, SegmentStep)
        policy, size = self.policy, step.tokens.shape[1]
        cache.sync()
        start, observing, free = cache.length, self._observing(cache), cache.forced is None
        route = cache.forced or policy.route(cache, size)
        alike = free and (policy.uniform or cache.length < cache.prompt)
        cache.append(step.positions[0], route, alike=alike)
        if not observing:
            step.run(cache, route, tree)
            return
        seen = step.bound if step.bound.watches else self._bind(cache, size, watched=True)
        step.run(cache, route, tree, seen)
        for group in route[1:]:
            policy.observe(cache, start, group, seen.stream_at(group))
