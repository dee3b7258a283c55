"""LongRoPE (Ding et al. 2024): texts up to the original context are rotated by short factors, longer ones by long ones.

Keys are cached as they were rotated. So a text that grows beyond the original context is run again, once, by the long
factors, as transformers does for Phi-3; one that is cut back to it, by the short ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from edge.manifest import Manifest
    from edge.runtime.engine.cache import KVCache

CHUNK = 128  # tokens of a step that runs a text again


class LongRope:
    """Which factors a text has. short: tokens of the longest text that has the short ones; their positions are `shift`
    further on in the graphs' tables."""

    def __init__(self, short: int, shift: int) -> None:
        self._short, self._shift = short, shift

    def place(
        self, cache: KVCache, tokens: NDArray[np.int64], again: Callable[[KVCache, NDArray[np.int64]], object]
    ) -> None:
        """Before a step of `tokens` [S]: give the text that it makes, or the prompt that it is a part of, its factors.
        again: runs tokens without looking here."""
        start, said = cache.length, cache.tokens
        del said[start:]
        whole = max(start + tokens.shape[0], cache.prompt if start < cache.prompt else 0)
        long = whole > self._short
        if long != cache.long:
            cache.long = long
            if start and len(said) == start:  # else nobody knows what stands there: it was put there to be measured
                text, cache.length = np.array(said, np.int64), 0
                for first in range(0, start, CHUNK):
                    again(cache, text[first : first + CHUNK])
        said.extend(tokens.tolist())

    def room(self, cache: KVCache) -> int:
        """Tokens of a step after which the text has the factors that it has now."""
        return cache.room if cache.long else max(1, self._short - cache.length)

    def turn(self, cache: KVCache, positions: NDArray[np.int64]) -> None:
        """Put the positions [S] of a step where the text's factors are in the tables. A last token that is run twice to
        make the step even has no place of its own there."""
        if not cache.long:
            np.minimum(positions + self._shift, self._shift + self._short - 1, out=positions)


def long_rope(manifest: Manifest) -> LongRope | None:
    """What gives texts their factors; None of a model that rotates all alike."""
    short = manifest.short_rope
    return None if short is None else LongRope(short, manifest.context)
