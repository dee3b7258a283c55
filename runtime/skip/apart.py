"""No policy of its own: everything runs, in groups that a caller may leave out step by step, as a drafter does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge.runtime.skip.base import MANY, Groups, Route, grouped

if TYPE_CHECKING:
    from edge.bundle import Bundle
    from edge.runtime.skip.cache import SegmentedCache


class Apart:
    """Everything runs unless a step says otherwise (`SegmentedEngine.leaving_out`).

    apart: segments, by their indices in the manifest, each of which is to be left out by itself or with neighbours that
    stand in the same tuple.
    """

    observes, uniform = False, True

    def __init__(self, bundle: Bundle, apart: Sequence[Sequence[int]]) -> None:
        self.groups: Groups = grouped(len(bundle.manifest.segments), apart)
        units = {tuple(unit) for unit in apart}
        self.optional = [g for g, group in enumerate(self.groups) if group in units]
        self._everything: Route = tuple(range(len(self.groups)))

    def route(self, cache: SegmentedCache, size: int) -> Route:
        return self._everything

    def pace(self, cache: SegmentedCache) -> int:
        return 0

    def steady(self, cache: SegmentedCache) -> int:
        return MANY

    def observe(self, cache: SegmentedCache, start: int, group: int, stream: NDArray[np.float32]) -> None:
        pass
