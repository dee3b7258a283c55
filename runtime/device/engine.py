"""The engine over graphs that were made for a device with memory of its own: CUDA's."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge.bundle import WEIGHTS, Bundle
from edge.errors import InputError
from edge.runtime.device.cache import DeviceCache, Seats
from edge.runtime.engine.binding import LAST_ROW
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.candidates import COUNT, Candidates
from edge.runtime.engine.encoder import Cross, Encoder
from edge.runtime.engine.engine import CANDIDATES, DEFAULT_CONTEXT, Engine, Tree
from edge.runtime.engine.variant import Variant
from edge.runtime.providers.base import Buffer, Provider, Session, memory_type
from edge.targets import DeviceTarget, read_device_target

WORKSPACE = 256 << 20  # bytes that activations and the libraries of a device take, about


class DeviceEngine(Engine):
    """An `Engine` over a bundle's graphs for a device. Keys, values and logits stay there; what comes back are tokens,
    or the likeliest of them. A step of each size is recorded and replayed, where the provider can.

    Raises:
        InputError: the context is not within the bundle's, or more than the variant's limit has room for.
        BundleError: the target cannot be read, or a graph not be loaded.
    """

    remote = True

    def __init__(self, bundle: Bundle, variant: Variant, provider: Provider) -> None:
        assert variant.target is not None
        self.target: DeviceTarget = read_device_target(bundle, variant.target)
        if variant.limit is not None:
            variant = dataclasses.replace(variant, context=self._within(bundle, variant))
        super().__init__(bundle, variant, provider)
        self.kv = dataclasses.replace(self.kv, dtype=self.target.activations)
        self.seats = Seats(self.context)

    def _within(self, bundle: Bundle, variant: Variant) -> int:
        """The context that the limit has room for: what is asked for, or as much as fits."""
        assert variant.limit is not None
        most = min(DEFAULT_CONTEXT, bundle.manifest.context) if variant.context is None else variant.context
        room = variant.limit - self._weights(bundle) - WORKSPACE
        fitting = room // self.bytes_of_row(bundle, self.target)
        if fitting < (16 if variant.context is None else most):
            need = self._weights(bundle) + WORKSPACE + most * self.bytes_of_row(bundle, self.target)
            fits = f"a context of {fitting} would fit" if fitting >= 16 else "its weights alone take most of that"
            raise InputError(
                f"{bundle.manifest.name} takes about {need / 2**20:,.0f} MiB of the device's memory with a context of "
                f"{most} tokens, and --memory gives it {variant.limit / 2**20:,.0f}; {fits}."
            )
        return min(most, fitting)

    @staticmethod
    def bytes_of_row(bundle: Bundle, target: DeviceTarget) -> int:
        """Bytes of the keys and values of a token."""
        size = memory_type(target.activations).itemsize
        return sum(2 * layer.heads * layer.head_dim * size for layer in bundle.manifest.kv.layers)

    def _weights(self, bundle: Bundle) -> int:
        return (self._folder(bundle) / WEIGHTS).stat().st_size

    def _folder(self, bundle: Bundle) -> Path:
        return bundle.path(self.target.decoder).parent

    def _open(self) -> Session:
        path = self.bundle.path(self.target.decoder)
        weights, limit = self._weights(self.bundle), self.variant.limit
        return self.provider.open_steps(path, str(path), path.parent, weights=weights, limit=limit)

    def _open_encoder(self, source: int | None) -> Encoder:
        assert self.target.encoder is not None
        path = self.bundle.path(self.target.encoder)
        session = self.provider.open_model(path, str(path), path.parent, weights=self._weights(self.bundle))
        return Encoder(self.bundle, self.provider, source, session=session, dtype=self.target.activations)

    @property
    def sessions(self) -> dict[str, Session]:
        encoder = self.encoder.sessions if self.encoder is not None else {}
        return encoder | {self.target.name: self.session}

    def path(self, name: str) -> Path:
        if name == self.target.name:
            return self.bundle.path(self.target.decoder)
        if name == "encoder" and self.target.encoder is not None:
            return self.bundle.path(self.target.encoder)
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
        if not 1 <= len(tokens) <= cache.room:
            raise ValueError(f"a step of {len(tokens)} tokens on a cache with room for {cache.room}")
        made = self._ran(cache, tokens, wanted, tree, CANDIDATES).result
        count = min(COUNT, self.bundle.manifest.dims.vocab_size)
        logits, found = self.provider.largest(made, count)
        return [
            Candidates(found[i], logits[i], partial(_whole_row, self.provider, made, i)) for i in range(len(wanted))
        ]

    def _logits_for(self, cache: KVCache, rows: int) -> Buffer:
        """Each step's own: what the host reads of several would be the largest of them."""
        return self.provider.allocate((1, rows, self.bundle.manifest.dims.vocab_size), np.float32)


def _whole_row(provider: Provider, logits: Buffer, row: int) -> NDArray[np.float32]:
    """A row of logits [1, R, V], read from the device."""
    whole: NDArray[np.float32] = provider.read(logits)[0, row]
    return whole
