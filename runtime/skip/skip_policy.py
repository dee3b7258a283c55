"""The protocol of skip policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge.errors import InputError
from edge.manifest import SKIP
from edge.runtime.engine.route import Route, all_units
from edge.runtime.skip.units import LEAST

if TYPE_CHECKING:
    from edge.bundle import Bundle
    from edge.manifest import Segment
    from edge.runtime.engine.graphs.segment_cache import SegmentedCache

MANY = 1 << 30  # tokens: as many as come


class SkipPolicy:
    """Says which units run in a step.

    The prompt's tokens are those below `cache.prompt`. What a policy remembers of a conversation belongs to its cache.

    watched: the units, in order, of which `observe` wants to know what they read of the prompt. uniform: whether all
    tokens, of prompts and answers, run through the same units. limited: whether each token decides while it runs, by
    `limits`.
    """

    watched: Sequence[int] = ()
    uniform = False
    limited = False

    def route(self, cache: SegmentedCache, size: int) -> Route:
        """The units that the next `size` tokens run through."""
        raise NotImplementedError

    def max_exact_step(self, cache: SegmentedCache) -> int:
        """Minimum number of tokens, from the next one on, that run through the same units."""
        return MANY

    def limits(self, cache: SegmentedCache) -> NDArray[np.float32] | None:
        """Limits [U] by which the next tokens leave out units of their route: see `edge.runtime.kernels.units`. None:
        no limits. Only called for policies that are `limited`."""
        return None

    def pace(self, cache: SegmentedCache) -> int:
        """Return the pace of an answer. Answers that begin together and have the same pace run through the same units,
        token by token. Only called for policies that do not watch the prompt."""
        return 0

    def observe(self, cache: SegmentedCache, start: int, unit: int, stream: NDArray[np.float32]) -> None:
        """Receive the residual stream [S, H] that a unit read, for a prompt's tokens from the one at `start` on. Called
        for the units that are `watched`, in their order."""


class FixedRoute(SkipPolicy):
    """A policy whose every step runs through the same units."""

    uniform = True

    def __init__(self, route: Route) -> None:
        self._route = route

    def route(self, cache: SegmentedCache, size: int) -> Route:
        return self._route


class AllLayers(FixedRoute):
    """Runs all units, unless a step says otherwise (`SegmentedGraph.through`), as a drafter does."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(all_units(bundle))


def middle(bundle: Bundle, *, parts: Sequence[str] = ("layers",), what: str) -> list[int]:
    """The indices of the units that can be left out.

    Raises:
        InputError: the bundle has none, or not of these parts, or was exported earlier.
    """
    segments = bundle.manifest.segments
    found = [i for i, segment in enumerate(segments) if segment.part in parts]
    name, layers = bundle.manifest.name, bundle.manifest.dims.num_layers
    if not segments and layers < LEAST:
        raise InputError(f"{name} has {layers} layers; the first and the last one always run, so none can be skipped.")
    if not segments:
        raise InputError(
            f"{name} has no segments, which skipping needs where edge_kernels cannot leave out its layers; export it "
            "with --segments N or ffn."
        )
    if not bundle.routed and all(graph.role != SKIP for graph in bundle.manifest.graphs):
        raise InputError(
            f"The segments of {bundle.manifest.name} are files as edge wrote them earlier; export the model again."
        )
    if not found:
        other = "--segments ffn" if "feed_forward" in parts else "--segments N"
        raise InputError(f"{what} skips other parts than the segments of {name}; export it with {other}.")
    return found


def skippable(segments: Sequence[Segment]) -> list[tuple[int, ...]]:
    """The smallest sets of units by which whole layers can be left out, by their indices: both halves of a layer."""
    units: list[tuple[int, ...]] = []
    for i, segment in enumerate(segments):
        if segment.part in ("layers", "attention"):
            units.append((i,))
        elif segment.part == "feed_forward":
            units[-1] += (i,)
    return units


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
