"""The engine over graphs that were made for a device with memory of its own: CUDA's."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.errors import InputError
from edge.runtime.device.plan import LEAST, plan_for
from edge.runtime.device.seats import DeviceCache, Seats
from edge.runtime.engine.binding import LAST_ROW
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.candidates import COUNT, Candidates
from edge.runtime.engine.encoder import Cross, Encoder
from edge.runtime.engine.engine import CANDIDATES, Engine
from edge.runtime.engine.tree import Tree
from edge.runtime.engine.variant import Variant
from edge.runtime.kernels.graph_check import read_graph
from edge.runtime.limits import DEFAULT_CONTEXT
from edge.runtime.providers.base import Buffer, Provider, Session
from edge.targets import DeviceTarget, read_device_target


class DeviceEngine(Engine):
    """An `Engine` over a bundle's graphs for a device. Keys, values and logits stay there; what comes back are tokens,
    or the likeliest of them. A step of each size is recorded and replayed, where the provider can.

    Raises:
        InputError: the context is not within the bundle's, or more than the variant's limit has room for.
        BundleError: the target cannot be read, or a graph not be loaded.
    """

    chunk = 2048
    side_by_side = 32
    remote = True

    turns = False

    def __init__(self, bundle: Bundle, variant: Variant, provider: Provider) -> None:
        assert variant.target is not None
        self.target: DeviceTarget = read_device_target(bundle, variant.target)
        if variant.limit is not None:
            variant = dataclasses.replace(variant, context=self._within(bundle, variant.limit, variant.context))
        super().__init__(bundle, variant, provider)
        self.kv = dataclasses.replace(self.kv, dtype=self.target.activations)
        self.seats = Seats(self.context)

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

    def _open_encoder(self, source: int | None) -> Encoder:
        assert self.target.encoder is not None
        path = self.bundle.file(self.target.encoder)
        read_graph(path, path.parent)
        session = self.provider.open_model(path, str(path), path.parent, weights=self._weights)
        return Encoder(self.bundle, self.provider, source, session=session, dtype=self.target.activations)

    @property
    def sessions(self) -> dict[str, Session]:
        encoder = self.encoder.sessions if self.encoder is not None else {}
        return encoder | {self.target.name: self.session}

    def path(self, name: str) -> Path:
        if name == self.target.name:
            return self.bundle.file(self.target.decoder)
        if name == "encoder" and self.target.encoder is not None:
            return self.bundle.file(self.target.encoder)
        return super().path(name)

    @property
    def supports_batching(self) -> bool:
        return self.encoder is None

    def make_cache(self, rows: int, cross: Cross | None = None) -> DeviceCache:
        if rows < 1:
            raise InputError(f"A KV cache needs room for at least one token, not {rows}.")
        return DeviceCache(self.provider, self.kv, rows, self.seats, cross)

    def candidates(
        self,
        cache: KVCache,
        tokens: NDArray[np.int64],
        rows: NDArray[np.int64] | None = None,
        *,
        tree: Tree | None = None,
    ) -> list[Candidates]:
        wanted = LAST_ROW if rows is None else rows
        self.check_open()
        cache.check_room(len(tokens))
        return self.candidates_of(self._ran(cache, tokens, wanted, tree, CANDIDATES).result)

    def candidates_of(self, logits: Buffer) -> list[Candidates]:
        values, tokens = self.provider.largest(logits, min(COUNT, logits.shape[-1]))
        read = partial(_row, self.provider, logits)
        return [Candidates(tokens[i], values[i], partial(read, i)) for i in range(len(tokens))]

    def _logits_for(self, cache: KVCache, rows: int) -> Buffer:
        """Each step's own: what the host reads of several would be the largest of them."""
        return self.provider.allocate((1, rows, self.bundle.manifest.dims.vocab_size), np.float32)


def _row(provider: Provider, logits: Buffer, row: int) -> NDArray[np.float32]:
    """A row of logits, read from the device."""
    whole: NDArray[np.float32] = provider.read(logits).reshape(-1, logits.shape[-1])[row]
    return whole
