"""The graph of all layers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.manifest import KV8
from edge.runtime.engine.binding import Step, WholeBinding
from edge.runtime.engine.cache import KVCache, check_memory
from edge.runtime.engine.encoder import Cross
from edge.runtime.engine.graphs.batch_step import BatchSteps
from edge.runtime.engine.graphs.kept_steps import KeptSteps
from edge.runtime.engine.graphs.single import SingleSession
from edge.runtime.engine.states import states_of
from edge.runtime.engine.tree import Tree
from edge.runtime.engine.variant import Variant
from edge.runtime.engine.want import LOGITS, Want
from edge.runtime.providers.provider import Provider, Session


class WholeGraph(SingleSession):
    """See `Graphs`: one session over the variant's graph."""

    routes = None

    def __init__(self, bundle: Bundle, variant: Variant, provider: Provider) -> None:
        super().__init__(bundle, variant, provider)
        vocab = bundle.manifest.dims.vocab_size
        self._steps = KeptSteps[Step, WholeBinding](provider, vocab)
        self.batch = BatchSteps(self.session, vocab) if batches(bundle, variant, self.session) else None

    def make_cache(self, rows: int, cross: Cross | None, spare: int, exact: bool) -> KVCache:
        manifest = self.bundle.manifest
        check_memory(self.kv, rows, remote=False, states=manifest.state_bytes)
        return KVCache(self.provider, self.kv, rows, cross, spare, exact, states_of(manifest, self.provider))

    def run(
        self, cache: KVCache, tokens: NDArray[np.int64], rows: NDArray[np.int64], tree: Tree | None, want: Want
    ) -> Any:
        first = cache.length <= cache.prompt  # the first step of an answer
        step = self._steps.known(cache, tokens.shape[0], rows.shape[0], want)
        if step is None:
            step = kept_step(self._steps, self.session, cache, tokens.shape[0], rows.shape[0], want)
        step.fill(tokens, cache.length, rows, tree)
        if self.long_rope is not None:
            self.long_rope.turn(cache, step.positions)
        step.run(cache, tree)
        return step.result.array[0] if want == LOGITS else self._steps.found(step, want, first)


def kept_step(
    steps: KeptSteps[Step, WholeBinding], session: Session, cache: KVCache, size: int, rows: int, want: Want
) -> Step:
    """A new step over a graph of all layers."""
    outputs = steps.outputs(cache, rows, want)
    bound = steps.binding(cache, size, outputs, partial(WholeBinding, session))
    return steps.keep(cache, Step(bound, cache, size, rows, outputs), rows, want)


def batches(bundle: Bundle, variant: Variant, session: Session) -> bool:
    """True if the graph can run one token of each of several sequences."""
    if bundle.manifest.short_rope is not None:  # each may have other factors
        return False
    return (variant.role == KV8 and session.supports_batching) or bundle.manifest.graph(variant.role).batch
