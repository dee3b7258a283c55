"""The subject of measurements: a bundle's engine with one KV cache, which can be set to any context at once.

A context is reached by moving the cache's length over rows that earlier steps wrote (or copies of them) instead of
running that many tokens: a step costs the same at either.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.manifest import KV_DTYPES, Manifest
from edge.runtime.decode.generate_options import never
from edge.runtime.decode.loop import generate
from edge.runtime.decode.sampling import SamplingOptions, make_sampler
from edge.runtime.engine.encoder import Cross
from edge.runtime.engine.engine import Engine
from edge.runtime.limits import PREFILL_CHUNK

WRITTEN = 512  # rows that are really run, where the capacity allows; the others are copies of them
SOURCE = 64  # tokens of a text encoder's input: two or three sentences


@dataclass(frozen=True)
class FirstToken:
    """One time to first token, in milliseconds; `encode_ms` is the encoder's share, where there is one."""

    ms: float
    encode_ms: float | None


class Subject:
    """A loaded engine to be measured, with a KV cache of `capacity` tokens. Its input is random: no kernel's speed
    depends on the tokens."""

    def __init__(self, engine: Engine, capacity: int) -> None:
        self.engine, self.capacity = engine, capacity
        self._manifest = engine.bundle.manifest
        self._rng = np.random.default_rng(0)
        self._sampler = make_sampler(SamplingOptions())
        self._cross: Cross | None = None  # what the decoder reads: of the first input, until `fill`
        self._cache = engine.new_cache(capacity)
        self._written = 0  # rows that hold something

    def audio_s(self, tokens: int) -> float | None:
        """Seconds of audio for which the encoder has `tokens` rows; None for a model of text."""
        speech = self._manifest.speech
        return None if speech is None else tokens / speech.frames_per_second

    def first_token(self, tokens: int) -> FirstToken:
        """Read an input of `tokens` tokens, or rows of audio, and generate the first token of the output."""
        source = self._source(tokens)
        prompt = source if self.engine.encoder is None else self._decoder_start()
        start = time.perf_counter()
        cross = None if self.engine.encoder is None else self._encode(source)
        encoded = time.perf_counter()
        self._cross = self._cross or cross
        self._cache.reset(cross)
        next(generate(self.engine, self._cache, prompt, self._sampler, chunk=PREFILL_CHUNK, interrupted=never))
        end = time.perf_counter()
        self._written = max(self._written, self._cache.length)
        return FirstToken((end - start) * 1e3, None if cross is None else (encoded - start) * 1e3)

    def decode(self, context: int, count: int) -> list[float]:
        """Measure the milliseconds of each of `count` tokens, one after another from `context` on, greedily sampled.

        One more token runs before them, so that caches and threads are as in the middle of an answer.
        """
        self._at(context, count + 1)
        tokens = generate(self.engine, self._cache, self._tokens(1), self._sampler, chunk=1, interrupted=never)
        next(tokens)
        times, before = [], time.perf_counter()
        for _ in range(count):
            next(tokens)
            now = time.perf_counter()
            times.append((now - before) * 1e3)
            before = now
        return times

    def step(self, size: int, context: int) -> float:
        """Measure the milliseconds of one step of `size` tokens, with logits of every one, at `context` tokens."""
        self._at(context, size)
        tokens, rows = self._tokens(size), np.arange(size)
        start = time.perf_counter()
        self.engine.step(self._cache, tokens, rows)
        return (time.perf_counter() - start) * 1e3

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self._cache.length

    @property
    def cross_bytes(self) -> int:
        """Bytes of the encoder's output."""
        return 0 if self._cache.cross is None else self._cache.cross.nbytes

    def kv_bytes(self, page: int) -> int:
        """Bytes of the KV cache that are in memory, in pages of `page` bytes that its rows have touched."""
        rows = max(self._written, self._cache.length)
        return sum(
            2 * layer.heads * -(-rows * layer.head_dim * KV_DTYPES[self._manifest.kv.dtype] // page) * page
            for layer in self._manifest.kv.layers
        )

    def fill(self, written: int = WRITTEN) -> None:
        """Write the whole cache: `written` rows are run, and copied to the others. From here on an encoder-decoder
        decodes an input of `source_tokens` rows."""
        rows = min(written, self.capacity)
        if rows_of_source := source_tokens(self._manifest):
            self._cross = self._encode(self._source(rows_of_source))
        self._cache.reset(self._cross)
        for start in range(0, rows, PREFILL_CHUNK):
            self.engine.step(self._cache, self._tokens(min(PREFILL_CHUNK, rows - start)))
        self._written = max(self._written, rows)
        self._copy(self.capacity)

    def _at(self, context: int, room: int) -> None:
        """Set the cache to a context, from which `room` tokens are run."""
        self._cache.reset(self._cross)
        self._cache.fit(context + room)
        if context > self._written:
            self._copy(context)
        self._cache.length = context

    def _copy(self, upto: int) -> None:
        """Fill the rows below `upto` with copies of those that were written."""
        have = self._written
        if not have:
            raise ValueError("no rows have been run that could be copied")
        self._cache.repeat(have, upto)
        self._written = max(have, upto)

    def _source(self, tokens: int) -> NDArray[Any]:
        """An encoder's input: `tokens` tokens, or noise of as many rows."""
        speech = self._manifest.speech
        if speech is None:
            return self._tokens(tokens)
        samples = tokens * speech.sample_rate // speech.frames_per_second
        return self._rng.normal(0, 0.1, samples).astype(np.float32)

    def _encode(self, source: NDArray[Any]) -> Cross:
        encoder = self.engine.encoder
        assert encoder is not None
        if self._manifest.speech is None:
            return encoder.encode_text(source)
        return encoder.encode_audio(source, window=len(source))

    def _tokens(self, count: int) -> NDArray[np.int64]:
        return self._rng.integers(0, self._manifest.dims.vocab_size, count, np.int64)

    def _decoder_start(self) -> NDArray[np.int64]:
        """Random tokens, as many as the decoder of an encoder-decoder begins with."""
        text, speech = self._manifest.text, self._manifest.speech
        if speech is not None:  # start, language, task, no timestamps
            return self._tokens(2 + bool(speech.languages) + bool(speech.tasks))
        forced = self._manifest.generation is not None and self._manifest.generation.forced_bos is not None
        assert text is not None
        return self._tokens(max(1, len(text.decoder_start) + text.target_at_start + forced))


def source_tokens(manifest: Manifest) -> int | None:
    """Rows of an encoder's input that is measured; None where there is no encoder."""
    encoder = manifest.encoder
    if encoder is None:
        return None
    return encoder.max_length if encoder.input == "audio" else min(SOURCE, encoder.max_length)


def input_kind(manifest: Manifest) -> str:
    """Kind of a bundle's input: "prompt" tokens, an encoder's "source" tokens, or "audio"."""
    if manifest.encoder is None:
        return "prompt"
    return "audio" if manifest.encoder.input == "audio" else "source"
