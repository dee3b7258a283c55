"""No policy of its own: everything runs, but for what a caller leaves out step by step, as a drafter does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge.runtime.skip.base import MANY, Route, all_units

if TYPE_CHECKING:
    from edge.bundle import Bundle
    from edge.runtime.skip.cache import SegmentedCache


class AllLayers:
    """Everything runs unless a step says otherwise (`SegmentedEngine.leaving_out`)."""

    watched, uniform = (), True

    def __init__(self, bundle: Bundle) -> None:
        self._everything: Route = all_units(bundle)

    def route(self, cache: SegmentedCache, size: int) -> Route:
        return self._everything

    def pace(self, cache: SegmentedCache) -> int:
        return 0

    def max_exact_step(self, cache: SegmentedCache) -> int:
        return MANY

    def observe(self, cache: SegmentedCache, start: int, unit: int, stream: NDArray[np.float32]) -> None:
        pass
