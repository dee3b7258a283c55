"""Skipping of feed-forward blocks that hardly turn the residual stream; attention stays whole.

Source: Jaiswal et al. 2024, FFN-SkipLLM: A Hidden Gem for Autoregressive Decoding with Adaptive Feed Forward Skipping
(arXiv 2404.03865): what a block reads and what stands behind it have a cosine that tells how redundant it is; blocks at
both ends stay. There each token decides while it runs. Here the prompt's tokens decide for the answer, whose speed is
known then.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.runtime.skip.base import middle, share
from edge.runtime.skip.cache import SegmentedCache
from edge.runtime.skip.prompt import PromptPolicy

NAME = "ffn"
HELP = "the share R of feed-forward blocks that change the prompt least"
TRAITS = {"asked": "ffn:R", "halves": True}

CHOICE = 1.5  # candidates for each block that is left out


class FeedForward(PromptPolicy):
    """Leaves out `count` feed-forward blocks, those with the highest mean cosine among candidates in the middle."""

    def __init__(self, bundle: Bundle, count: int) -> None:
        segments = bundle.manifest.segments
        blocks = [i for i, segment in enumerate(segments) if segment.part == "feed_forward"]
        self.count = min(count, len(blocks))
        chosen = [blocks[place] for place in candidates(len(blocks), self.count)]
        super().__init__(bundle, chosen, watched=sorted({unit + i for unit in chosen for i in (0, 1)}))
        # What the unit before was about to read, of each conversation: prompts may be read at the same time.
        self._read: WeakKeyDictionary[SegmentedCache, NDArray[np.float32]] = WeakKeyDictionary()

    def observe(self, cache: SegmentedCache, start: int, unit: int, stream: NDArray[np.float32]) -> None:
        place = self.places.get(unit - 1)
        if place is not None:
            read = self._read[cache]
            norms = np.linalg.norm(read, axis=1) * np.linalg.norm(stream, axis=1)
            cosines = np.einsum("sh,sh->s", read, stream) / np.maximum(norms, np.finfo(np.float32).tiny)
            self.scores(cache)[place, start : start + len(stream)] = cosines
        self._read[cache] = stream

    def choose(self, means: NDArray[np.float32]) -> NDArray[np.bool_]:
        return most_redundant(means, self.count)


def candidates(blocks: int, count: int) -> range:
    """Those in the middle of `blocks`, among which `count` are chosen to be left out."""
    many = min(round(CHOICE * count), blocks)
    first = (blocks - many) // 2
    return range(first, first + many)


def most_redundant(cosines: NDArray[np.float32], count: int) -> NDArray[np.bool_]:
    """Which of the candidates [C] are left out: the `count` that turn the stream least, the first of equals."""
    out = np.zeros(len(cosines), bool)
    out[np.argsort(-cosines, kind="stable")[:count]] = True
    return out


def make(bundle: Bundle, setting: str) -> FeedForward:
    middle(bundle, parts=("feed_forward",), what="ffn")
    ratio = share(setting, "ffn:0.25")
    return FeedForward(bundle, round(ratio * bundle.manifest.dims.num_layers))
