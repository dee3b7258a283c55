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
    """Chooses between the short and the long factors for each text.

    short: tokens of the longest text with the short factors, whose positions are `shift` further on in the graphs'
    tables.
    """

    def __init__(self, short: int, shift: int) -> None:
        self._short, self._shift = short, shift

    def place(
        self, cache: KVCache, tokens: NDArray[np.int64], again: Callable[[KVCache, NDArray[np.int64]], object]
    ) -> None:
        """Choose the factors before a step of `tokens` [S], by the length of the text after it or of the prompt that
        the step is a part of. Where they change, the text so far is run again.

        again: runs tokens without a call of this.
        """
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
        """Tokens that the next step may have without a change of the text's factors."""
        return cache.room if cache.long else max(1, self._short - cache.length)

    def turn(self, cache: KVCache, positions: NDArray[np.int64]) -> None:
        """Move the positions [S] of a step to the text's factors in the tables. A last token that is run twice to make
        the step even has no position of its own there."""
        if not cache.long:
            np.minimum(positions + self._shift, self._shift + self._short - 1, out=positions)


def long_rope(manifest: Manifest) -> LongRope | None:
    """Return what chooses a text's factors; None for a model with the same factors for all texts."""
    short = manifest.short_rope
    return None if short is None else LongRope(short, manifest.context)
