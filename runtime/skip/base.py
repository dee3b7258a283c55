"""What a skip policy is, and how a step of some segments is described."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from edge.errors import InputError

if TYPE_CHECKING:
    from edge.bundle import Bundle
    from edge.manifest import Segment
    from edge.runtime.skip.cache import SegmentedCache

Groups = list[tuple[int, ...]]
"""Segments, by their indices in the manifest, that always run together, in the order they run. Segments of no group
never run; the first segment is in the first group, the last one in the last."""

MANY = 1 << 30  # tokens: as many as come

Route = tuple[int, ...]
"""The groups that run in a step, by their indices, in order: the first and the last one always do."""


class SkipPolicy(Protocol):
    """Says which groups run in a step.

    The prompt's tokens are those below `cache.prompt`. What a policy remembers of a conversation belongs to its cache.
    """

    @property
    def groups(self) -> Groups: ...

    @property
    def optional(self) -> Collection[int]:
        """The groups that a step may leave out; all others always run, the first and the last one in any case."""
        ...

    @property
    def observes(self) -> bool:
        """Whether `observe` wants the prompt's residual stream."""
        ...

    @property
    def uniform(self) -> bool:
        """Whether all tokens, of prompts and answers, run through the same groups."""
        ...

    def route(self, cache: SegmentedCache, size: int) -> Route:
        """The groups that the next `size` tokens run through."""
        ...

    def steady(self, cache: SegmentedCache) -> int:
        """How many tokens from the next one on run through the same groups, at least."""
        ...

    def pace(self, cache: SegmentedCache) -> int:
        """Answers that begin together and have the same pace run through the same groups, token by token. Only asked of
        policies that do not observe the prompt."""
        ...

    def observe(self, cache: SegmentedCache, start: int, group: int, stream: NDArray[np.float32]) -> None:
        """The residual stream [S, H] that a group read, of a prompt's tokens from the one at `start` on; told of the
        groups in their order."""
        ...


def middle(bundle: Bundle, *, parts: Sequence[str] = ("layers",), what: str) -> list[int]:
    """The indices of the segments that can be left out.

    Raises:
        InputError: the bundle has none, or not of these parts.
    """
    segments = bundle.manifest.segments
    found = [i for i, segment in enumerate(segments) if segment.part in parts]
    if not segments:
        raise InputError(
            f"{bundle.manifest.name} has no segments, so nothing can be skipped; export it with --segments N or ffn."
        )
    if not found:
        other = "--segments ffn" if "feed_forward" in parts else "--segments N"
        name = bundle.manifest.name
        raise InputError(f"{what} skips other parts than the segments of {name}; export it with {other}.")
    return found


def skippable(segments: Sequence[Segment]) -> list[tuple[int, ...]]:
    """The smallest units that whole layers can be left out by: segments' indices, the halves of a layer together."""
    units: list[tuple[int, ...]] = []
    for i, segment in enumerate(segments):
        if segment.part in ("layers", "attention"):
            units.append((i,))
        elif segment.part == "feed_forward":
            units[-1] += (i,)
    return units


def grouped(count: int, apart: Sequence[Sequence[int]], never: Sequence[int] = ()) -> Groups:
    """Groups of `count` segments: each of `apart` is one by itself, `never` are left out, and neighbours among all
    others stand together, also across those left out."""
    own = {i: tuple(unit) for unit in apart for i in unit}
    groups: Groups = []
    joined = False  # whether the last group takes up further segments
    for i in range(count):
        if i in never:
            continue
        if i in own:
            if i == own[i][0]:
                groups.append(own[i])
            joined = False
        elif joined:
            groups[-1] += (i,)
        else:
            groups.append((i,))
            joined = True
    return groups


def share(setting: str, example: str) -> float:
    """The share of layers that a setting asks to leave out.

    Raises:
        InputError: it is no number from 0 to below 1.
    """
    try:
        ratio = float(setting)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio < 1:
        raise InputError(f"{setting!r} is no share of the layers, from 0 to below 1; write it like {example}.")
    return ratio
