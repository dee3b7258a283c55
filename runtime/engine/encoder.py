"""The encoder of an encoder-decoder: an input goes in once, keys and values for every decoder layer come out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.errors import InputError
from edge.manifest import FLOAT32, KVLayer
from edge.runtime.engine.failures import FAILURES, failed
from edge.runtime.providers.provider import Buffer, Provider, Session, memory_type

Shape = tuple[int, int, int, int]
Pairs = list[tuple[Buffer, Buffer]]


@dataclass(frozen=True)
class Cross:
    """Keys and values that the decoder's cross-attention reads: per layer a key [1, H, T, D] and a value [1, H, T, D],
    or [1, H, D, T] where the manifest says so, float32."""

    memory: Pairs
    length: int  # T
    whole: Pairs  # what `memory` is the first part of: room for a window of sound, whatever was heard

    @property
    def buffers(self) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """The keys and values of each layer as the host sees them."""
        return [(key.array, value.array) for key, value in self.memory]

    @cached_property
    def named(self) -> dict[str, Buffer]:
        """The buffers by their names in the graphs."""
        return {
            f"cross.{i}.{part}": buffer
            for i, pair in enumerate(self.memory)
            for part, buffer in zip(("key", "value"), pair, strict=True)
        }

    @property
    def nbytes(self) -> int:
        return sum(key.nbytes + value.nbytes for key, value in self.memory)


class Encoder:
    """The encoder's session, and for speech the frontend's. `edge.runtime.engine.engine.Engine.encoder` is one.

    Args:
        source: most tokens of a text, where memory has room for fewer than the model takes.
        session: over another graph than the bundle's; `dtype`: of the keys and values that it makes, whose values are
            not transposed. frontend: over the bundle's frontend, where another provider runs it. why: what limits the
            source.

    any_length: whether a window of sound may be shorter than the bundle's.

    Raises:
        BundleError: a graph cannot be loaded.
    """

    def __init__(
        self,
        bundle: Bundle,
        provider: Provider,
        source: int | None = None,
        *,
        session: Session | None = None,
        frontend: Session | None = None,
        dtype: str = FLOAT32,
        why: str = "",
    ) -> None:
        manifest = bundle.manifest
        assert manifest.encoder is not None and manifest.cross is not None
        self._bundle = bundle
        self.max_length = source or manifest.encoder.max_length
        shorter = self.max_length < manifest.encoder.max_length
        self._why = why or (" in the memory that it may take" if shorter else "")
        self._layers = manifest.cross.layers
        self.turned = session is None and manifest.encoder.values_transposed
        self._dtype = memory_type(dtype)
        self._speech = manifest.speech
        self.any_length = manifest.encoder.any_length
        if manifest.speech is not None and frontend is None:
            frontend = provider.open(bundle, "frontend")
        self._frontend = frontend
        self._session = provider.open(bundle, "encoder") if session is None else session
        self._provider = provider

    @property
    def sessions(self) -> dict[str, Session]:
        """Its sessions, by the roles of their graphs."""
        return ({} if self._frontend is None else {"frontend": self._frontend}) | {"encoder": self._session}

    def encode_text(self, ids: NDArray[np.int64], into: Cross | None = None) -> Cross:
        """Encode a text's token ids [T].

        into: an earlier result to write over, where it has the same length; by default new memory is taken.

        Raises:
            InputError: no tokens, or more than the encoder takes.
        """
        self._check_length(len(ids))
        return self._encode("input_ids", np.asarray(ids, np.int64)[None], len(ids), into)

    def _check_length(self, tokens: int) -> None:
        if not 1 <= tokens <= self.max_length:
            raise InputError(
                f"The text has {tokens} tokens, and this model's encoder takes 1 to {self.max_length}{self._why}; "
                + ("shorten it or split it." if tokens else "give it some text.")
            )

    def encode_audio(self, pcm: NDArray[np.float32], into: Cross | None = None, *, window: int | None = None) -> Cross:
        """Encode up to one window of mono samples [N] at the bundle's sample rate; silence fills the window.

        into: an earlier result to write over.
        window: samples of it, whole frames; fewer than the bundle's only where its encoder takes `any_length`.

        Raises:
            InputError: more samples than a window holds.
        """
        assert self._speech is not None
        window = window or self._speech.window_samples
        length = self.max_length * window // self._speech.window_samples
        return self._encode("input_features", self.features(pcm, window), length, into)

    def features(self, pcm: NDArray[np.float32], window: int | None = None) -> NDArray[np.float32]:
        """Return the encoder's input for a window of sound: the mel filters' energies [1, M, frames]. See
        `encode_audio`."""
        assert self._speech is not None and self._frontend is not None
        window = window or self._speech.window_samples
        if len(pcm) > window:
            raise InputError(f"A window holds {window} samples, not {len(pcm)}.")
        padded = np.zeros((1, window), np.float32)
        padded[0, : len(pcm)] = pcm
        try:
            features: NDArray[np.float32] = self._frontend.run({"pcm": padded})[0]
        except FAILURES as e:
            raise failed(self._bundle, e) from e
        return features

    def _encode(self, name: str, array: NDArray[Any], length: int, into: Cross | None) -> Cross:
        try:
            cross = into if into is not None and into.length == length else self._new(length, into)
            binding = self._session.bind()
            binding.input(name, self._provider.adopt(array))
            for made, buffer in cross.named.items():
                binding.output(made, buffer)
            binding.run()
        except FAILURES as e:
            raise failed(self._bundle, e) from e
        return cross

    def _new(self, length: int, into: Cross | None) -> Cross:
        """Room for `length` rows: for sound a part of that for a window, which is taken once. The system hands it out
        page by page as it is written."""
        if self._speech is None:
            memory = self._allocated(length)
            return Cross(memory, length, memory)
        whole = self._allocated(self.max_length) if into is None else into.whole
        if length == self.max_length:
            return Cross(whole, length, whole)
        memory = []
        for layer, (key, value) in zip(self._layers, whole, strict=True):
            of_key, of_value = self._shapes(layer, length)
            memory.append((self._provider.part(key, of_key), self._provider.part(value, of_value)))
        return Cross(memory, length, whole)

    def _allocated(self, length: int) -> Pairs:
        allocate, shapes = self._provider.allocate, (self._shapes(layer, length) for layer in self._layers)
        return [(allocate(of_key, self._dtype), allocate(of_value, self._dtype)) for of_key, of_value in shapes]

    def _shapes(self, layer: KVLayer, length: int) -> tuple[Shape, Shape]:
        """Of a layer's key and value."""
        shape = (1, layer.heads, length, layer.head_dim)
        return shape, (1, layer.heads, layer.head_dim, length) if self.turned else shape
