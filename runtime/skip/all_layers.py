"""No policy of its own: everything runs, but for what a caller leaves out step by step, as a drafter does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge.runtime.skip.base import FixedRoute, all_units

if TYPE_CHECKING:
    from edge.bundle import Bundle


class AllLayers(FixedRoute):
    """Everything runs unless a step says otherwise (`SegmentedEngine.leaving_out`)."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(all_units(bundle))
