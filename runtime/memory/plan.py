"""A plan: what a run may take of a memory budget, and the bytes that this is. `edge.runtime.budget` makes them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from edge.runtime.memory.footprint import EACH, LEFT, SLACK, Demand, Footprint

RESERVE = 0.04  # of a prediction: peaks were up to 2% above; at least the `SLACK` by which programs differ


@dataclass(frozen=True)
class Plan:
    """A demand that fits into a memory budget, and its bytes. budget: in bytes; None where there is none. widest:
    maximum tokens of a step that the budget has room for, up to 64; that of `demand` where there is no budget."""

    demand: Demand
    footprint: Footprint
    budget: int | None
    widest: int

    @property
    def answers_bytes(self) -> int:
        """Bytes of the budget that answers may take together. Each counts with its activations as a whole, of which
        the first finds some room in what loading left."""
        assert self.budget is not None
        once = sum(size for kind, size in self.footprint.running.items() if kind not in EACH)
        return self.budget - reserve(self.footprint.peak) - once + LEFT

    def answer_bytes(self, tokens: int | None = None) -> int:
        """Bytes of one answer whose KV cache has so many tokens; default: those of the demand."""
        running = self.footprint.running
        each = sum(running.get(kind, 0) for kind in EACH[1:])
        return LEFT + each + (running["KV cache"] if tokens is None else self.cache_bytes(tokens))

    def cache_bytes(self, tokens: int) -> int:
        """Bytes of a text's KV cache of so many tokens."""
        return math.ceil(self.footprint.running["KV cache"] * tokens / (self.demand.context * self.demand.branches))

    @property
    def state_bytes(self) -> int:
        """Bytes of a text's states, and of the marks that it may go back to."""
        return self.footprint.running.get("states", 0) // self.demand.branches


def needed(footprint: Footprint) -> int:
    """Return the smallest budget for a run with this predicted footprint."""
    return footprint.peak + reserve(footprint.peak)


def reserve(peak: int) -> int:
    """Bytes that a prediction may be wrong by."""
    return max(math.ceil(peak * RESERVE), SLACK)
