"""The graph of a decoder in units, of which a policy says which run."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.errors import BundleError, InputError
from edge.manifest import FLOAT32, SKIP
from edge.runtime.engine.binding import KEPT_STEP
from edge.runtime.engine.cache import KVCache, check_memory
from edge.runtime.engine.encoder import Cross
from edge.runtime.engine.graphs.batch_step import BatchSteps, RowRoute
from edge.runtime.engine.graphs.kept_steps import KeptSteps
from edge.runtime.engine.graphs.segment_cache import SegmentedCache
from edge.runtime.engine.graphs.segment_step import SegmentsBinding, SegmentStep
from edge.runtime.engine.graphs.single import SingleSession
from edge.runtime.engine.graphs.whole import batches
from edge.runtime.engine.route import Route, all_units, check_route
from edge.runtime.engine.tree import Tree
from edge.runtime.engine.variant import Variant
from edge.runtime.engine.want import LOGITS, Want
from edge.runtime.kernels.units import Units, of_all
from edge.runtime.providers.provider import Provider, Session

if TYPE_CHECKING:
    from edge.runtime.skip.skip_policy import SkipPolicy

_log = logging.getLogger(__name__)


class SegmentedGraph(SingleSession):
    """See `Graphs`: units of which the variant's policy says which run in each step, those of the decoder's graph where
    our kernels leave them out (`Bundle.routed`), else of the bundle's graph `skip`.
    """

    def __init__(self, bundle: Bundle, variant: Variant, provider: Provider) -> None:
        assert variant.policy is not None
        self.policy: SkipPolicy = variant.policy
        segments = bundle.manifest.segments
        self._layers = [[] if segment.part == "feed_forward" else segment.layers for segment in segments]
        self.everything = all_units(bundle)
        self._route = self.everything  # the last one that was checked
        self._routed = bundle.routed  # by an input of the graph of all layers, else by those of branches
        super().__init__(bundle, variant if self._routed else dataclasses.replace(variant, role=SKIP), provider)
        vocab = bundle.manifest.dims.vocab_size
        self._steps = KeptSteps[SegmentStep, SegmentsBinding](provider, vocab)
        takes_batch = batches(bundle, self.variant, self.session) and (self.by_row or not self.policy.watched)
        self.batch = BatchStepsInUnits(self.session, vocab, bundle, self.policy) if takes_batch else None
        for unit in self.policy.watched:
            if f"at.{unit}.x" not in self.session.outputs:
                raise BundleError(
                    f"{self.path(self.variant.role)} does not show what unit {unit} reads, which the bundle's routers "
                    "decide by; export the model again."
                )

    def _open(self) -> Session:
        if not self._routed:
            return super()._open()
        policy = self.policy
        units = Units(tuple(self.bundle.manifest.segments), tuple(policy.watched), policy.limited)
        try:
            return self.provider.open(self.bundle, self.variant.role, units=units)
        except BundleError:  # the kernels cannot be used, which was said
            if not self.bundle.guarded or self.variant.plan is not None or policy.limited:
                raise
        self._routed = False
        _log.warning("edge_kernels cannot leave out layers here: %s runs in its segments.", self.bundle.manifest.name)
        if self.kv.dtype != FLOAT32:
            name = self.bundle.manifest.name
            _log.warning("The KV cache of %s is in %s instead of %s.", name, FLOAT32, self.kv.dtype)
        self.variant = dataclasses.replace(self.variant, role=SKIP, kv=FLOAT32)
        self.kv = dataclasses.replace(self.kv, dtype=FLOAT32)
        return super()._open()

    @property
    def routes(self) -> SegmentedGraph:
        return self

    @property
    def by_row(self) -> bool:
        """True if the sequences of one step may run through different units."""
        return self._routed

    @property
    def free(self) -> bool:
        """True if the sequences of a step need no common route: each has its own units, or all tokens run through the
        same."""
        return self.by_row or self.policy.uniform

    def pace(self, cache: KVCache) -> int:
        """See `SkipPolicy.pace`."""
        assert isinstance(cache, SegmentedCache), "another engine's cache"
        return self.policy.pace(cache)

    def max_exact_step(self, cache: KVCache) -> int:
        """See `SkipPolicy.max_exact_step`."""
        assert isinstance(cache, SegmentedCache), "another engine's cache"
        return self.policy.max_exact_step(cache)

    def make_cache(self, rows: int, cross: Cross | None, spare: int, exact: bool) -> SegmentedCache:
        placed = not self.session.inputs.isdisjoint(("key_positions.0", of_all("key_positions")))
        check_memory(self.kv, rows, remote=False)
        return SegmentedCache(self.provider, self.kv, rows, self._layers, cross, spare, exact, placed)

    def weight(self, unit: int) -> float:
        """Size of a unit in layers; half a layer counts 0.5."""
        segment = self.bundle.manifest.segments[unit]
        return len(segment.layers) / (1 if segment.part in ("start", "layers", "end") else 2)

    def layers_run(self, cache: KVCache) -> float:
        """Layers that ran in a cache's last step, summed over its tokens."""
        assert isinstance(cache, SegmentedCache) and cache.last_step is not None, "no step was run"
        route, step = cache.last_step
        assert isinstance(step, SegmentStep)
        if step.ran is None:
            return step.size * sum(map(self.weight, route))
        return float(sum(self.weight(unit) * ran.sum() for unit, ran in enumerate(step.ran.array)))

    def leaving_out(self, units: Collection[int]) -> Route:
        """The route through all but these units, by their indices in the manifest's `segments`.

        Raises:
            InputError: they are among those that always run.
        """
        if not set(units) <= {*self.everything[1:-1]}:
            raise InputError(f"The units {sorted(units)} cannot be left out: the first and the last one always run.")
        return tuple(unit for unit in self.everything if unit not in units)

    @contextmanager
    def through(self, cache: KVCache, route: Route) -> Iterator[None]:
        """Make steps on `cache` run the units of `route` within this context; steps on other caches follow the
        policy."""
        assert isinstance(cache, SegmentedCache), "another engine's cache"
        cache.forced = route
        try:
            yield
        finally:
            cache.forced = None

    def run(
        self, cache: KVCache, tokens: NDArray[np.int64], rows: NDArray[np.int64], tree: Tree | None, want: Want
    ) -> Any:
        assert isinstance(cache, SegmentedCache), "another engine's cache"
        first, size = cache.length <= cache.prompt, tokens.shape[0]
        step = self._steps.known(cache, size, rows.shape[0], want) or self._step(cache, size, rows.shape[0], want)
        step.fill(tokens, cache.length, rows, tree)
        self._compute(cache, step, tree)
        return step.result.array[0] if want == LOGITS else self._steps.found(step, want, first)

    def _step(self, cache: SegmentedCache, size: int, rows: int, want: Want) -> SegmentStep:
        outputs = self._steps.outputs(cache, rows, want)
        bound = self._steps.binding(cache, size, outputs, self._bind)
        return self._steps.keep(cache, SegmentStep(bound, cache, size, rows, outputs), rows, want)

    def _bind(self, cache: KVCache, maximum: int, watched: bool = False) -> SegmentsBinding:
        assert isinstance(cache, SegmentedCache), "another engine's cache"
        watched = watched or (maximum > KEPT_STEP and self._observing(cache))
        hidden = self.bundle.manifest.dims.hidden_size
        return SegmentsBinding(self.session, cache, maximum, self.policy.watched if watched else (), hidden)

    def _observing(self, cache: SegmentedCache) -> bool:
        """True if the policy reads the residual stream of the next step."""
        return cache.forced is None and bool(self.policy.watched) and cache.length < cache.prompt

    def _compute(self, cache: SegmentedCache, step: SegmentStep, tree: Tree | None) -> None:
        """Run a step that was filled, and take its tokens into the cache."""
        policy, size = self.policy, step.size
        cache.sync()
        start, observing, free = cache.length, self._observing(cache), cache.forced is None
        route = cache.forced or policy.route(cache, size)
        if free and route is not self._route:
            check_route(route, self.bundle)
            self._route = route
        alike = free and (policy.uniform or cache.length < cache.prompt)
        cache.append(step.positions, route, alike=alike)
        if self.long_rope is not None:
            self.long_rope.turn(cache, step.positions)
        seen = self._bind(cache, size, watched=True) if observing and not step.bound.watches else step.bound
        if policy.limited:
            seen.limit(policy.limits(cache) if free and start >= cache.prompt else None)
        step.run(cache, route, tree, seen)
        cache.last_step = route, step
        if not observing:
            return
        for unit in policy.watched:
            policy.observe(cache, start, unit, seen.stream_at(unit))


class BatchStepsInUnits(BatchSteps):
    """See `BatchSteps`: each text runs through the units that the policy says."""

    def __init__(self, session: Session, vocab: int, bundle: Bundle, policy: SkipPolicy) -> None:
        super().__init__(session, vocab, len(all_units(bundle)))
        self._bundle, self._policy = bundle, policy
        self._checked = set[Route]()

    def row_route(self, cache: KVCache) -> RowRoute:
        assert isinstance(cache, SegmentedCache), "another engine's cache"
        cache.sync()
        if cache.forced is not None:
            return cache.forced, None
        policy = self._policy
        route = policy.route(cache, 1)
        if route not in self._checked:
            check_route(route, self._bundle)
            self._checked.add(route)
        return route, policy.limits(cache) if policy.limited else None
