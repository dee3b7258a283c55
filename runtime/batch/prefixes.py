"""Keys and values of texts that were read before, for prompts that begin like one of them.

A row of a cache depends on the tokens up to its own alone, so that a prompt which begins like an earlier text needs
only its other tokens to be run. With kernels for which a row of a step never depends on the rows next to it, rows are
the same bits however a text was cut into steps. Elsewhere they are where both texts were cut at the same places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge.runtime.engine.cache import KVCache, Rows
from edge.runtime.engine.engine import Engine

LEAST = 16  # tokens that are worth being copied


class _Text(NamedTuple):
    tokens: NDArray[np.int64]
    rows: Rows
    bytes: int


class Prefixes:
    """The texts that were read last.

    Args:
        engine: whose caches they are of.
        limit: bytes of keys and values; of texts beyond it those that were not used for longest are dropped.
        chunk: tokens of a prompt's steps.
    """

    def __init__(self, engine: Engine, limit: int, chunk: int) -> None:
        # Of other models more than keys and values belongs to a text, or they are not in this process's memory.
        plain = engine.routes is None and engine.long_rope is None and engine.prefill is None and engine.encoder is None
        known = plain and not engine.remote and not engine.bundle.manifest.states
        self._limit = limit if known else 0
        self.exact = engine.independent  # whether rows of answers, too, are what they were in a prompt
        self._multiple = 1 if self.exact else chunk
        self._texts = list[_Text]()  # the one that was used last is at the end
        self.bytes = 0

    def begin(self, prompt: Sequence[int], cache: KVCache) -> int:
        """Begin an empty cache with what is known of a prompt. Returns the number of tokens; the last one is never
        among them, because its logits are needed."""
        tokens, best, length = np.asarray(prompt, np.int64), None, 0
        for text in self._texts:
            if (shared := _shared(text.tokens, tokens[:-1])) > length:
                best, length = text, shared
        length -= length % self._multiple
        if best is None or length < LEAST:
            return 0
        cache.begin(best.rows, length)
        self._texts = [each for each in self._texts if each is not best] + [best]
        return length

    def keep(self, tokens: Sequence[int], cache: KVCache) -> None:
        """Keep the rows of a cache, whose text is `tokens` or begins with them."""
        text = np.asarray(tokens, np.int64)
        text = text[: len(text) - len(text) % self._multiple]
        size = sum(part[:, :, : len(text)].nbytes for pair in cache.buffers for part in pair)
        if size > self._limit:
            return
        if len(text) < LEAST or any(_shared(each.tokens, text) == len(text) for each in self._texts):
            return
        for each in [each for each in self._texts if _shared(each.tokens, text) == len(each.tokens)]:
            self._drop(each)
        while self.bytes + size > self._limit:
            self._drop(self._texts[0])
        self._texts.append(_Text(text, cache.first_rows(len(text)), size))
        self.bytes += size

    def _drop(self, text: _Text) -> None:
        self._texts = [each for each in self._texts if each is not text]
        self.bytes -= text.bytes


def _shared(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """The length of the longest common beginning."""
    size = min(len(a), len(b))
    differs = np.flatnonzero(a[:size] != b[:size])
    return int(differs[0]) if differs.size else size
