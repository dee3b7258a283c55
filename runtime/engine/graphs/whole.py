"""The graph of all layers."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.manifest import KV8
from edge.runtime.engine.binding import Step, WholeBinding
from edge.runtime.engine.cache import KVCache, check_memory
from edge.runtime.engine.encoder import Cross, Encoder
from edge.runtime.engine.fits import check_fits
from edge.runtime.engine.graphs.kept_steps import KeptSteps
from edge.runtime.engine.graphs.protocol import context_of
from edge.runtime.engine.long_rope import long_rope
from edge.runtime.engine.tree import Tree
from edge.runtime.engine.variant import Variant
from edge.runtime.engine.want import LOGITS, Want
from edge.runtime.kernels.nodes import LIKELIEST_TOKENS
from edge.runtime.limits import PREFILL_CHUNK, SIDE_BY_SIDE
from edge.runtime.providers.base import Provider, Session


class WholeGraph:
    """See `Graphs`: one session over the variant's graph."""

    remote = False
    chunk = PREFILL_CHUNK
    side_by_side = SIDE_BY_SIDE
    routes = None
    target = None

    def __init__(self, bundle: Bundle, variant: Variant, provider: Provider) -> None:
        self.context = context_of(bundle, variant)
        self.bundle, self.variant, self.provider = bundle, variant, provider
        self.kv = dataclasses.replace(bundle.manifest.kv, dtype=variant.kv)
        self.long_rope = long_rope(bundle.manifest)
        self.encoder = open_encoder(bundle, variant, provider)
        self.session = provider.open(bundle, variant.role)
        self.chooses = "tokens" in self.session.outputs
        self.ranks = LIKELIEST_TOKENS in self.session.outputs
        self.takes_trees = self.long_rope is None and any("attention_bias" in n for n in self.session.inputs)
        check_sessions(bundle, self.sessions, self.encoder)
        self._steps = KeptSteps[Step, WholeBinding](provider, bundle.manifest.dims.vocab_size)

    @property
    def sessions(self) -> dict[str, Session]:
        return (self.encoder.sessions if self.encoder is not None else {}) | {self.variant.role: self.session}

    def path(self, name: str) -> Path:
        return self.bundle.path(self.bundle.manifest.graph(name).path)

    @property
    def supports_batching(self) -> bool:
        return batches(self.bundle, self.variant, self.session)

    def make_cache(self, rows: int, cross: Cross | None, spare: int, exact: bool) -> KVCache:
        check_memory(self.kv, rows, remote=False)
        return KVCache(self.provider, self.kv, rows, cross, spare, exact)

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


def open_encoder(bundle: Bundle, variant: Variant, provider: Provider) -> Encoder | None:
    """The bundle's encoder, where it has one; of a text as long as the plan has memory for."""
    if bundle.manifest.encoder is None:
        return None
    return Encoder(bundle, provider, None if variant.plan is None else variant.plan.demand.source)


def check_sessions(bundle: Bundle, sessions: dict[str, Session], encoder: Encoder | None) -> None:
    """BundleError where a graph has other sizes than the manifest states, of which memory is taken."""
    turned = encoder is not None and encoder.turned
    for name, session in sessions.items():
        check_fits(bundle, session, name, turned=turned)


def batches(bundle: Bundle, variant: Variant, session: Session) -> bool:
    """True if the graph can run one token of each of several sequences."""
    if bundle.manifest.short_rope is not None:  # each may have other factors
        return False
    return (variant.role == KV8 and session.supports_batching) or bundle.manifest.graph(variant.role).batch
