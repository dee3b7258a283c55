"""The graph that was made for a device with memory of its own: CUDA's."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.errors import InputError
from edge.runtime.engine.binding import Step, WholeBinding
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.candidates import candidates_of
from edge.runtime.engine.encoder import Cross, Encoder
from edge.runtime.engine.graphs.batch_step import BatchSteps
from edge.runtime.engine.graphs.device_cache import DeviceCache, DeviceMemoryPool
from edge.runtime.engine.graphs.device_plan import LEAST, plan_for
from edge.runtime.engine.graphs.kept_steps import KeptSteps
from edge.runtime.engine.graphs.protocol import context_of
from edge.runtime.engine.graphs.single import check_sessions
from edge.runtime.engine.graphs.whole import kept_step
from edge.runtime.engine.tree import Tree
from edge.runtime.engine.variant import Variant
from edge.runtime.engine.want import CANDIDATES, LOGITS, Want
from edge.runtime.kernels.graph_check import read_graph
from edge.runtime.kernels.nodes import LIKELIEST_TOKENS
from edge.runtime.limits import DEFAULT_CONTEXT
from edge.runtime.providers.provider import Provider, Session
from edge.targets import DeviceTarget, read_device_target


class DeviceGraph:
    """See `Graphs`: a bundle's graphs for a device. Keys, values and logits stay there; what comes back are tokens, or
    the likeliest of them. A step of each size is recorded and replayed, where the provider can.

    Raises:
        InputError: the context is not within the bundle's, or more than the variant's limit has room for.
        BundleError: the target cannot be read, or a graph not be loaded.
    """

    long_rope = None
    chunk = 2048
    side_by_side = 32
    remote = True
    routes = None

    def __init__(self, bundle: Bundle, variant: Variant, provider: Provider) -> None:
        assert variant.target is not None
        self.target: DeviceTarget = read_device_target(bundle, variant.target)
        if variant.limit is not None:
            variant = dataclasses.replace(variant, context=self._within(bundle, variant.limit, variant.context))
        self.context = context_of(bundle, variant)
        self.bundle, self.variant, self.provider = bundle, variant, provider
        self.encoder = self._open_encoder() if bundle.manifest.encoder is not None else None
        self.session = self._open()
        self.chooses = "tokens" in self.session.outputs
        self.ranks = LIKELIEST_TOKENS in self.session.outputs
        self.takes_trees = any("attention_bias" in name for name in self.session.inputs)
        check_sessions(bundle, self.sessions, self.encoder)
        self.kv = dataclasses.replace(bundle.manifest.kv, dtype=self.target.activations)
        self.pool = DeviceMemoryPool(self.context)
        vocab = bundle.manifest.dims.vocab_size
        self._steps = KeptSteps[Step, WholeBinding](provider, vocab, remote=True)
        self.batch = BatchSteps(self.session, vocab) if self.encoder is None else None

    def _within(self, bundle: Bundle, limit: int, asked: int | None) -> int:
        """The context that the limit has room for: what is asked for, or as much as fits."""
        most = min(DEFAULT_CONTEXT, bundle.manifest.context) if asked is None else asked
        plan = plan_for(bundle, self.target, most)
        fitting = plan.fitting(limit)
        if fitting < (LEAST if asked is None else most):
            fits = f"a context of {fitting:,} would fit" if fitting >= LEAST else "that is too little for its weights"
            raise InputError(
                f"{bundle.manifest.name} takes about {plan.total / 1e6:,.0f} MB of the device's memory with a context "
                f"of {most:,} tokens, and --memory gives it {limit / 1e6:,.0f} MB; {fits}."
            )
        return fitting

    @property
    def _weights(self) -> int:
        return plan_for(self.bundle, self.target, 1).weights

    def _open(self) -> Session:
        path = self.bundle.file(self.target.decoder)
        read_graph(path, path.parent)
        limit = self.variant.limit
        if limit is not None:
            limit -= plan_for(self.bundle, self.target, self.context).kv
        return self.provider.open_steps(path, str(path), path.parent, weights=self._weights, limit=limit)

    def _open_encoder(self) -> Encoder:
        assert self.target.encoder is not None
        path = self.bundle.file(self.target.encoder)
        read_graph(path, path.parent)
        session = self.provider.open_model(path, str(path), path.parent, weights=self._weights)
        return Encoder(self.bundle, self.provider, session=session, dtype=self.target.activations)

    @property
    def sessions(self) -> dict[str, Session]:
        encoder = self.encoder.sessions if self.encoder is not None else {}
        return encoder | {self.target.name: self.session}

    def path(self, name: str) -> Path:
        if name == self.target.name:
            return self.bundle.file(self.target.decoder)
        if name == "encoder" and self.target.encoder is not None:
            return self.bundle.file(self.target.encoder)
        return self.bundle.path(self.bundle.manifest.graph(name).path)

    def make_cache(self, rows: int, cross: Cross | None, spare: int, exact: bool) -> DeviceCache:
        if rows < 1:
            raise InputError(f"A KV cache needs room for at least one token, not {rows}.")
        return DeviceCache(self.provider, self.kv, rows, self.pool, cross)

    def run(
        self, cache: KVCache, tokens: NDArray[np.int64], rows: NDArray[np.int64], tree: Tree | None, want: Want
    ) -> Any:
        first = cache.length <= cache.prompt  # the first step of an answer
        step = self._steps.known(cache, tokens.shape[0], rows.shape[0], want)
        if step is None:
            step = kept_step(self._steps, self.session, cache, tokens.shape[0], rows.shape[0], want)
        step.fill(tokens, cache.length, rows, tree)
        step.run(cache, tree)
        if want == CANDIDATES:
            return candidates_of(self.provider, step.result)
        return step.result.array[0] if want == LOGITS else self._steps.found(step, want, first)
