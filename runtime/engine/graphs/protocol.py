"""The protocol of what runs an engine's steps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.errors import InputError
from edge.manifest import KVLayout
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.encoder import Cross, Encoder
from edge.runtime.engine.graphs.batch_step import BatchSteps
from edge.runtime.engine.long_rope import LongRope
from edge.runtime.engine.tree import Tree
from edge.runtime.engine.variant import Variant
from edge.runtime.engine.want import Want
from edge.runtime.limits import DEFAULT_CONTEXT
from edge.runtime.providers.provider import Session
from edge.targets import DeviceTarget, Target

if TYPE_CHECKING:
    from edge.runtime.engine.graphs.segments import SegmentedGraph


class Graphs(Protocol):
    """The graphs of a decoder, opened, with its encoder where it has one.

    variant: as it was opened. kv: of caches. context: maximum tokens of a cache. session: over the decoder's graph, or
    over the first of several. encoder: of an encoder-decoder. long_rope: what turns positions by other factors, where
    steps may. chooses, ranks: whether a step can be asked for `TOKENS`, or for `Likeliest`. takes_trees: whether it can
    be given a `Tree`. remote: whether logits are in another memory than the host's, from which few are read sooner: a
    step can be asked for `CANDIDATES`. chunk: prompt tokens of one step, where nobody says how many. side_by_side:
    prompts that are answered at a time. routes: what says which units run in a step; None where all layers do. target:
    what the graphs were made for, where that is one kind of device. batch: runs a token of each of several texts;
    None where a step takes one text alone.
    """

    variant: Variant
    kv: KVLayout
    context: int
    session: Session
    encoder: Encoder | None
    chooses: bool
    ranks: bool
    takes_trees: bool
    remote: bool
    chunk: int
    side_by_side: int

    @property
    def long_rope(self) -> LongRope | None: ...

    @property
    def routes(self) -> SegmentedGraph | None: ...

    @property
    def target(self) -> Target | DeviceTarget | None: ...

    @property
    def batch(self) -> BatchSteps | None: ...

    @property
    def sessions(self) -> dict[str, Session]:
        """The sessions that are open, by the roles of their graphs."""

    def path(self, name: str) -> Path:
        """The file of the graph of one of `sessions`."""

    def make_cache(self, rows: int, cross: Cross | None, spare: int, exact: bool) -> KVCache:
        """An empty cache: see `KVCache`."""

    def run(
        self, cache: KVCache, tokens: NDArray[np.int64], rows: NDArray[np.int64], tree: Tree | None, want: Want
    ) -> Any:
        """Run `tokens` [S], append them to the cache, and return what is wanted of `rows` [R]: see `Engine.step`."""


def context_of(bundle: Bundle, variant: Variant) -> int:
    """Maximum tokens of a cache.

    Raises:
        InputError: the variant's context is not within the bundle's.
    """
    limit = bundle.manifest.context
    context = variant.context if variant.plan is None else variant.plan.demand.context
    context = min(DEFAULT_CONTEXT, limit) if context is None else context
    if not 1 <= context <= limit:
        raise InputError(f"The context must be between 1 and {limit} tokens for this bundle, not {context}.")
    return context
