"""SkipDecode: fewer layers the further an answer gets, the same ones for all tokens at a place.

Source: Del Corro et al. 2023, SkipDecode: Autoregressive Skip Decoding with Batching and Caching for Efficient LLM
Inference (arXiv 2307.02628): a budget that falls linearly, first layers kept as warm-up, lower to middle ones bypassed.
The layers of a token are always among those of the tokens before it, so that no layer ever misses keys and values.
"""

from __future__ import annotations

import re

from edge.bundle import Bundle
from edge.errors import InputError
from edge.runtime.engine.graphs.segment_cache import SegmentedCache
from edge.runtime.engine.route import Route, all_units
from edge.runtime.skip.skip_policy import SkipPolicy, middle, skippable

NAME = "skipdecode"
HELP = "fewer layers the further an answer gets, from MAX down to MIN"
TRAITS = {"asked": "skipdecode:MIN-MAX"}

HORIZON = 512  # tokens of an answer over which the layers fall from most to least
WARM = 3  # one of so many of the least layers is a first one; the others are the last ones
LEVELS = 8  # most steps in which the layers fall


class SkipDecode(SkipPolicy):
    """Runs `most` layers for the prompt, then ever fewer, down to `least` after `HORIZON` tokens of the answer, or at
    the end of the cache where that comes first. First and last layer are counted."""

    def __init__(self, bundle: Bundle, least: int, most: int) -> None:
        segments, layers = bundle.manifest.segments, bundle.manifest.dims.num_layers
        units = skippable(segments)
        width = len(segments[units[0][0]].layers)
        warm = max(1, least // WARM)
        bypassed = [unit for unit in units if segments[unit[0]].layers[0] >= warm]  # in the order that they are dropped
        never = min((layers - most) // width, len(bypassed))
        falling = bypassed[never : min((layers - least) // width, len(bypassed))]
        ends = level_ends(len(falling))
        self.levels = len(ends) - 1
        self._routes: list[Route] = []  # by the levels that are dropped
        for end in ends:
            out = {i for unit in bypassed[: never + end] for i in unit}
            self._routes.append(tuple(i for i in all_units(bundle) if i not in out))

    def dropped(self, prompt: int, position: int, capacity: int) -> int:
        """Number of levels that the token at `position` leaves out, after a prompt of `prompt` tokens."""
        last = _last(prompt, capacity)
        done = min(max(0, position - prompt), last)
        return done * (self.levels + 1) // (last + 1)

    def route(self, cache: SegmentedCache, size: int) -> Route:
        return self._routes[self.dropped(cache.prompt, _place(cache), cache.ends)]

    def pace(self, cache: SegmentedCache) -> int:
        return _last(cache.prompt, cache.ends)

    def max_exact_step(self, cache: SegmentedCache) -> int:
        prompt, last, place = cache.prompt, _last(cache.prompt, cache.ends), _place(cache)
        following = self.dropped(prompt, place, cache.ends) + 1
        begins = -(-following * (last + 1) // (self.levels + 1))  # that level, as a place in the answer
        end = prompt + begins if begins <= last else cache.ends
        return max(1, min(end - place, cache.capacity - cache.length))


def level_ends(falling: int) -> list[int]:
    """Number of units that are left out at each level, from level 0 on, if `falling` units are at the last level."""
    levels = min(LEVELS, falling)
    return [level * falling // max(1, levels) for level in range(levels + 1)]


def _place(cache: SegmentedCache) -> int:
    """Of the next token in its text: rows of several texts side by side (beams) are no more places."""
    return int(cache.positions[cache.length - 1]) + 1 if cache.length else 0


def _last(prompt: int, capacity: int) -> int:
    """The place in an answer, counted from 0, at which the fewest layers are reached."""
    return max(1, min(HORIZON, capacity - prompt) - 1)


def make(bundle: Bundle, setting: str) -> SkipDecode:
    middle(bundle, parts=("layers", "attention"), what="skipdecode")
    layers, found = bundle.manifest.dims.num_layers, re.fullmatch(r"(\d+)-(\d+)", setting)
    if not found:
        raise InputError(f"{setting!r} is no range of layers; write it like skipdecode:{layers // 2}-{layers}.")
    least, most = int(found[1]), int(found[2])
    if not 2 <= least <= most <= layers:
        raise InputError(
            f"skipdecode:{setting} does not go from 2 or more layers up to no more than the {layers} of "
            f"{bundle.manifest.name}."
        )
    return SkipDecode(bundle, least, most)
