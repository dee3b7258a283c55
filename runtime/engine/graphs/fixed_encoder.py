"""The encoder among graphs of fixed sizes: a text is filled up to the one length that it takes, sound to a window."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.runtime.engine.encoder import Cross, Encoder
from edge.runtime.engine.failures import FAILURES, failed
from edge.runtime.engine.graphs.fixed_mask import source_mask_of
from edge.runtime.mapped_file import mapped_file, unchanged
from edge.runtime.providers import open_provider
from edge.runtime.providers.provider import Buffer, Provider, Session
from edge.targets import Table, Target


def read_table(bundle: Bundle, table: Table) -> NDArray[np.float32]:
    """A table [rows, columns] of a bundle, mapped."""
    return np.memmap(bundle.file(table.path), np.float32, "r", shape=(table.rows, table.columns))


@dataclass(frozen=True)
class FixedCross(Cross):
    """See `Cross`. Keys are [1, H, D, T] and values [1, H, T, D], int16. mask [1, 1, 1, T]: hides what a text was
    filled up with, and nothing of sound."""

    mask: Buffer = field(kw_only=True)

    @cached_property
    def named(self) -> dict[str, Buffer]:
        return super().named | {"cross_mask": self.mask}


class FixedEncoder(Encoder):
    """See `Encoder`. Features of sound are made on the host."""

    def __init__(self, bundle: Bundle, target: Target, provider: Provider, session: Session) -> None:
        assert target.encoder is not None and bundle.manifest.cross is not None
        host_provider = open_provider("cpu")
        super().__init__(
            bundle,
            provider,
            target.encoder.length,
            session=session,
            frontend=None if bundle.manifest.speech is None else host_provider.open(bundle, "frontend"),
            dtype=target.kv,
            why=f" in the graphs for {target.name}",
        )
        self.any_length = False
        self._name, self._masked = f"{target.name}, encoder", target.masked
        paths = [table.path for table in (*target.encoder.tables, *target.biases[1:])]
        if target.encoder.embedding is not None:
            paths.append(target.encoder.embedding)
            rows = np.memmap(bundle.file(target.encoder.embedding), np.float16, "r")
            self._embedding = rows.reshape(-1, bundle.manifest.dims.hidden_size)
        self._tables = {table.input: read_table(bundle, table)[None] for table in target.encoder.tables}
        self._bias = read_table(bundle, target.biases[1]) if target.biases else None
        self._mapped = [mapped_file(bundle.file(path)) for path in paths]

    @property
    def sessions(self) -> dict[str, Session]:
        return {self._name: self._session}

    def encode_text(self, ids: NDArray[np.int64], into: Cross | None = None) -> FixedCross:
        size = self.max_length
        self._check_length(len(ids))
        rows = np.zeros((1, size, self._embedding.shape[1]), np.float32)
        with unchanged(self._mapped):
            rows[0, : len(ids)] = self._embedding[ids]
            given = {"rows": rows, "mask": source_mask_of(len(ids), size, self._bias, self._masked)} | self._tables
            cross = self._run(given, into)
        cross.mask.array[:] = source_mask_of(len(ids), size, None, self._masked)[:, :, :1]
        return cross

    def encode_audio(
        self, pcm: NDArray[np.float32], into: Cross | None = None, *, window: int | None = None
    ) -> FixedCross:
        return self._run({"features": self.features(pcm, window)}, into)

    def _run(self, given: dict[str, NDArray[Any]], into: Cross | None) -> FixedCross:
        names = [value.name for value in self._session.inference.get_outputs()]
        try:
            made = dict(zip(names, self._session.run(given), strict=True))
        except FAILURES as e:
            raise failed(self._bundle, e) from e
        cross = into if isinstance(into, FixedCross) else self._empty()
        for i, (key, value) in enumerate(cross.buffers):
            key[:] = made[f"cross.{i}.key"].transpose(0, 2, 3, 1)
            value[:] = made[f"cross.{i}.value"].transpose(0, 2, 1, 3)
        return cross

    def _empty(self) -> FixedCross:
        allocate, size = self._provider.allocate, self.max_length
        memory = [
            (
                allocate((1, layer.heads, layer.head_dim, size), self._dtype),
                allocate((1, layer.heads, size, layer.head_dim), self._dtype),
            )
            for layer in self._layers
        ]
        return FixedCross(memory, size, memory, mask=allocate((1, 1, 1, size), np.float32))
