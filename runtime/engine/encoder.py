"""The encoder of an encoder-decoder: an input goes in once, keys and values for every decoder layer come out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.errors import InputError
from edge.runtime.providers.base import Buffer, Provider


@dataclass(frozen=True)
class Cross:
    """What the decoder's cross-attention reads: per layer a key [1, H, T, D] and a value [1, H, T, D], or
    [1, H, D, T] where the manifest says so, float32."""

    memory: list[tuple[Buffer, Buffer]]
    length: int  # T

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
        return sum(key.nbytes + value.nbytes for key, value in self.buffers)


class Encoder:
    """The encoder's session, and for speech the frontend's. `edge.runtime.engine.engine.Engine.encoder` is one.

    Args:
        source: most tokens of a text, where memory has room for fewer than the model takes.

    Raises:
        BundleError: a graph cannot be loaded.
    """

    def __init__(self, bundle: Bundle, provider: Provider, source: int | None = None) -> None:
        manifest = bundle.manifest
        assert manifest.encoder is not None and manifest.cross is not None
        self.max_length = source or manifest.encoder.max_length
        self._why = " in the memory that it may take" if self.max_length < manifest.encoder.max_length else ""
        self._layers = manifest.cross.layers
        self._turned = manifest.encoder.values_transposed
        self._speech = manifest.speech
        self._frontend = None
        if manifest.speech is not None:
            self._frontend = provider.open(bundle, "frontend")
        self._session = provider.open(bundle, "encoder")
        self._provider = provider

    def encode_text(self, ids: NDArray[np.int64], into: Cross | None = None) -> Cross:
        """Encode a text's token ids [T].

        into: an earlier result to write over, where it has the same length; by default new memory is taken.

        Raises:
            InputError: no tokens, or more than the encoder takes.
        """
        if not 1 <= len(ids) <= self.max_length:
            raise InputError(
                f"The text has {len(ids)} tokens, and this model's encoder takes 1 to {self.max_length}{self._why}; "
                + ("shorten it or split it." if len(ids) else "give it some text.")
            )
        return self._encode("input_ids", np.asarray(ids, np.int64)[None], len(ids), into)

    def encode_audio(self, pcm: NDArray[np.float32], into: Cross | None = None) -> Cross:
        """Encode up to one window of mono samples [N] at the bundle's sample rate; silence fills the window.

        Raises:
            InputError: more samples than a window holds.
        """
        assert self._speech is not None and self._frontend is not None
        window = self._speech.window_samples
        if len(pcm) > window:
            raise InputError(f"A window holds {window} samples, not {len(pcm)}.")
        padded = np.zeros((1, window), np.float32)
        padded[0, : len(pcm)] = pcm
        (features,) = self._frontend.run({"pcm": padded})
        del padded  # 2 MB that need not stand beside the encoder's activations
        return self._encode("input_features", features, self.max_length, into)

    def _encode(self, name: str, array: NDArray[Any], length: int, into: Cross | None) -> Cross:
        cross = into if into is not None and into.length == length else self._new(length)
        binding = self._session.bind()
        binding.input(name, self._provider.adopt(array))
        for made, buffer in cross.named.items():
            binding.output(made, buffer)
        binding.run()
        return cross

    def _new(self, length: int) -> Cross:
        memory = []
        for layer in self._layers:
            shape = (1, layer.heads, length, layer.head_dim)
            turned = (1, layer.heads, layer.head_dim, length) if self._turned else shape
            memory.append((self._provider.allocate(shape, np.float32), self._provider.allocate(turned, np.float32)))
        return Cross(memory, length)
