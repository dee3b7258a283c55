"""The int8 prefill graph: a second graph over the decoder's cache, its layers in int8, for steps of many tokens."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.runtime.engine.binding import LAST_ROW, Step, WholeBinding, pad_to_even
from edge.runtime.engine.cache import KVCache
from edge.runtime.providers.base import Provider, Session


class PrefillEngine:
    """The int8 prefill graph of a bundle next to an engine over its decode graph: steps over the same caches."""

    def __init__(self, bundle: Bundle, provider: Provider) -> None:
        self._bundle, self._provider = bundle, provider

    @cached_property
    def session(self) -> Session:
        """The session over the graph, opened by the first prompt that is long enough (`edge.runtime.decode.loop`)."""
        return self._provider.open(self._bundle, "prefill")

    def step(
        self, cache: KVCache, tokens: NDArray[np.int64], rows: NDArray[np.int64] | None = None
    ) -> NDArray[np.float32]:
        """As `Engine.step`, without trees; the result is the caller's. Tokens and rows are run in even numbers, so that
        a row is the same, bit for bit, however a text is cut into steps, but for a last one that stands alone where the
        bundle's context ends; see `pad_to_even`."""
        rows = LAST_ROW if rows is None else rows
        size, wanted, vocab = tokens.shape[0], rows.shape[0], self._bundle.manifest.dims.vocab_size
        if not 1 <= size <= cache.room:
            raise ValueError(f"a step of {size} tokens on a cache with room for {cache.room}")
        tokens, rows = pad_to_even(tokens, rows, self._bundle.manifest.context - cache.length)
        made = self._provider.allocate((1, rows.shape[0], vocab), np.float32)
        step = Step(WholeBinding(self.session, cache, tokens.shape[0]), cache, tokens.shape[0], made)
        step.fill(tokens, cache.length, rows, None)
        step.run(cache, None)
        cache.length -= tokens.shape[0] - size
        found: NDArray[np.float32] = step.made[0, :wanted]
        return found
