"""Skipping of feed-forward blocks that hardly turn the residual stream; attention stays whole.

Source: Jaiswal et al. 2024, FFN-SkipLLM: A Hidden Gem for Autoregressive Decoding with Adaptive Feed Forward Skipping
(arXiv 2404.03865): what a block reads and what stands behind it have a cosine that tells how redundant it is; blocks at
both ends stay, and once a block is redundant for a token those behind it are, too. So each token decides while it runs
(`ffn:token=R`). Or the prompt's tokens decide for the answer (`ffn:R`), whose speed is known then.
"""

from __future__ import annotations

import math
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.errors import InputError
from edge.runtime.engine.graphs.segment_cache import SegmentedCache
from edge.runtime.engine.route import NO_LIMIT, Route
from edge.runtime.skip.prompt import PromptPolicy
from edge.runtime.skip.skip_policy import middle, share

NAME = "ffn"
HELP = "the share R of feed-forward blocks that change the prompt least, or each token by itself"
TRAITS = {"asked": "ffn:R|ffn:token=R", "halves": True}
TOKEN = "token="  # before a share: each token decides
FINEST = 1 << 16  # of which parts a limit is: the last bits of cosines differ from one processor to another
CHOICE = 1.5  # candidates for each block that is left out
CHOICE_BY_TOKEN = 2.0  # the same, where tokens differ in how many they leave out


class FeedForward(PromptPolicy):
    """Leaves out `count` feed-forward blocks, those with the highest mean cosine among candidates in the middle, of
    which there are `choice` for each of them."""

    def __init__(self, bundle: Bundle, count: int, choice: float = CHOICE) -> None:
        segments = bundle.manifest.segments
        blocks = [i for i, segment in enumerate(segments) if segment.part == "feed_forward"]
        self.count = min(count, len(blocks))
        chosen = [blocks[place] for place in candidates(len(blocks), self.count, choice)]
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


class ByToken(FeedForward):
    """Leaves out, for each token of an answer, the candidates after the first one that turned its stream by no more
    than a limit. The limit is the one by which the prompt's tokens would have left out `count` candidates on
    average."""

    limited = True

    def __init__(self, bundle: Bundle, count: int) -> None:
        super().__init__(bundle, count, CHOICE_BY_TOKEN)
        self._units = len(bundle.manifest.segments)
        self._limits: WeakKeyDictionary[SegmentedCache, NDArray[np.float32]] = WeakKeyDictionary()

    def route(self, cache: SegmentedCache, size: int) -> Route:
        if cache.length < cache.prompt or not cache.prompt:
            self._limits.pop(cache, None)
        return self._everything

    def limits(self, cache: SegmentedCache) -> NDArray[np.float32] | None:
        if not cache.prompt or not self.count:
            return None
        limits = self._limits.get(cache)
        if limits is None:
            limits = self._limits[cache] = np.full(self._units, NO_LIMIT, np.float32)
            limits[self.candidates] = limit(self.scores(cache)[:, : cache.prompt], self.count)
        return limits


def limit(cosines: NDArray[np.float32], count: int) -> np.float32:
    """The largest cosine by which tokens leave out `count` candidates on average, or as many as they can: those after
    the first one with this cosine or a higher one. cosines: of each candidate and token [C, S]."""
    highest = np.maximum.accumulate(cosines, axis=0)  # of a candidate and those before it
    # With a limit of the n-th highest of these, n pairs of a candidate and a token are at it or above it; each but the
    # last candidate's leaves out one more.
    values = np.sort(highest[:-1], axis=None)[::-1]
    wanted = count * cosines.shape[1]
    found = min(1.0, float(values[wanted - 1])) if wanted <= values.size else -1.0
    return np.float32(math.floor(found * FINEST) / FINEST)


def candidates(blocks: int, count: int, choice: float = CHOICE) -> range:
    """The candidates: blocks in the middle of `blocks`, `count` of which are to be left out."""
    many = min(round(choice * count), blocks)
    first = (blocks - many) // 2
    return range(first, first + many)


def most_redundant(cosines: NDArray[np.float32], count: int) -> NDArray[np.bool_]:
    """Choose the candidates [C] to leave out: the `count` that turn the stream least, the first of equals."""
    out = np.zeros(len(cosines), bool)
    out[np.argsort(-cosines, kind="stable")[:count]] = True
    return out


def make(bundle: Bundle, setting: str) -> FeedForward:
    middle(bundle, parts=("feed_forward",), what="ffn")
    by_token = setting.startswith(TOKEN)
    ratio = share(setting.removeprefix(TOKEN), f"ffn:{TOKEN}0.25" if by_token else "ffn:0.25")
    if by_token and not bundle.routed:
        raise InputError(
            f"ffn:{setting} needs edge_kernels, which leave out what a token decides while it runs; ffn:{ratio} goes "
            "without."
        )
    return (ByToken if by_token else FeedForward)(bundle, round(ratio * bundle.manifest.dims.num_layers))
