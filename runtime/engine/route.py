"""A route: which units of a decoder run in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge.errors import InputError

if TYPE_CHECKING:
    from edge.bundle import Bundle

NO_LIMIT = 2.0  # no cosine is as large

Route = tuple[int, ...]
"""The units that run in a step, by their indices in the manifest's `segments`, in order: the first and the last one
always do."""


def all_units(bundle: Bundle) -> Route:
    """The route through everything."""
    return tuple(range(len(bundle.manifest.segments)))


def check_route(route: Route, bundle: Bundle) -> None:
    """Raise InputError where a policy's route is none of the bundle's units: steps would read what no step wrote."""
    last = len(bundle.manifest.segments) - 1
    if list(route) != sorted({0, last, *route}) or (route[0], route[-1]) != (0, last):
        raise InputError(
            f"The skip policy chose the units {str(list(route))[:100]} for a step; those of {bundle.manifest.name} are "
            f"0 to {last}, in this order, of which the first and the last one run in every step."
        )
