"""Graphs that run an engine's steps, one file for each kind: `whole`, `segments`, `fixed` and `device`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge.targets import CUDA

if TYPE_CHECKING:
    from edge.bundle import Bundle
    from edge.runtime.engine.graphs.protocol import Graphs
    from edge.runtime.engine.variant import Variant
    from edge.runtime.providers.provider import Provider


def open_graphs(bundle: Bundle, variant: Variant, provider: Provider) -> Graphs:
    """The variant's graphs.

    Raises:
        InputError: the variant's context is not within the bundle's, or more than the graphs were made for.
        BundleError: the bundle has no such graphs, or they cannot be loaded.
    """
    if variant.target == CUDA:
        from edge.runtime.engine.graphs.device import DeviceGraph

        return DeviceGraph(bundle, variant, provider)
    if variant.target is not None:
        from edge.runtime.engine.graphs.fixed import FixedGraphs

        return FixedGraphs(bundle, variant, provider)
    if variant.policy is not None:
        from edge.runtime.engine.graphs.segments import SegmentedGraph

        return SegmentedGraph(bundle, variant, provider)
    from edge.runtime.engine.graphs.whole import WholeGraph

    return WholeGraph(bundle, variant, provider)
