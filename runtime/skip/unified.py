"""Unified layer skipping: the same layers left out for every token, spread evenly over the decoder.

Source: Liu et al. 2024, Accelerating Inference in Large Language Models with a Unified Layer Skipping Strategy
(arXiv 2404.06954): a target ratio says how many layers stay, and first, last and evenly spaced ones do.
"""

from __future__ import annotations

from edge.bundle import Bundle
from edge.runtime.engine.route import all_units
from edge.runtime.skip.skip_policy import FixedRoute, middle, share, skippable

NAME = "unified"
HELP = "the same share R of the layers for every token, spread evenly"
TRAITS = {"asked": "unified:R"}


class Unified(FixedRoute):
    """Leaves out `ratio` of the decoder's layers."""

    def __init__(self, bundle: Bundle, ratio: float) -> None:
        segments = bundle.manifest.segments
        units = skippable(segments)
        width = len(segments[units[0][0]].layers)
        count = min(round(ratio * bundle.manifest.dims.num_layers / width), len(units))
        chosen = [units[i] for i in spread(count, len(units))]
        self.left_out = [i for unit in chosen for i in unit]
        super().__init__(tuple(i for i in all_units(bundle) if i not in self.left_out))


def spread(count: int, total: int) -> list[int]:
    """`count` of `total` places, as evenly as they go."""
    return [int((j + 0.5) * total / count) for j in range(count)]


def make(bundle: Bundle, setting: str) -> Unified:
    middle(bundle, parts=("layers", "attention"), what="unified")
    return Unified(bundle, share(setting, "unified:0.2"))
