"""Bundles whose decoder our kernels run in units, without a graph of its own for that."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from edge.bundle import Bundle
from edge.manifest import SKIP, Segment
from edge.runtime.engine.variant import DECODER
from edge.runtime.providers import BEST, provider_name

if TYPE_CHECKING:
    from edge.runtime.providers.provider import Provider

HALVES = "feed_forward"
LEAST = 3  # layers, of which the first and the last one always run


@dataclass(frozen=True)
class InUnits(Bundle):
    """A bundle whose decoder runs in the manifest's `segments` by our kernels, whatever its graphs are."""

    routed: ClassVar[bool] = True
    guarded: bool = False


def in_units(bundle: Bundle, provider: str | Provider = BEST, *, halves: bool = False) -> Bundle:
    """The bundle in units, where our kernels run its decoder on this provider; else as it is.

    The units are the bundle's own segments, where it has some. halves: those of feed-forward blocks, in any case; a
    bundle without segments is in units of a layer each otherwise.
    """
    from edge.runtime.kernels.graph import runs_in_units
    from edge.runtime.kernels.units import Units

    ours = provider_name(provider) == BEST and (isinstance(provider, str) or getattr(provider, "own_kernels", False))
    if bundle.routed or not ours:
        return bundle
    segments, layers = bundle.manifest.segments, bundle.manifest.dims.num_layers
    guarded = any(graph.role == SKIP for graph in bundle.manifest.graphs)
    if not segments or (halves and all(segment.part != HALVES for segment in segments)):
        segments, guarded = spans(layers, HALVES if halves else 1), False
    if layers < LEAST or not runs_in_units(bundle, DECODER, Units(tuple(segments))):
        return bundle
    return InUnits(bundle.root, dataclasses.replace(bundle.manifest, segments=segments), guarded)


def spans(layers: int, unit: int | str) -> list[Segment]:
    """The first and the last layer, and units of so many layers each, or of halves of layers, between them."""
    middle = range(1, layers - 1)
    if isinstance(unit, int):
        found = [Segment("layers", list(middle[at : at + unit])) for at in range(0, len(middle), unit)]
    else:
        found = [Segment(part, [i]) for i in middle for part in ("attention", HALVES)]
    return [Segment("start", [0]), *found, Segment("end", [layers - 1])]
