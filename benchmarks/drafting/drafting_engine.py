"""What a peer with drafts of its own offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

PLAIN = "plain"  # the setting without drafts


@dataclass(frozen=True)
class Answered:
    """One greedy answer: tokens after the first, the seconds that they took, and to the first one; the steps that it
    took after the first, where that is known."""

    tokens: int
    decode_s: float
    prefill_s: float
    steps: int | None = None


class Drafting(Protocol):
    """A model in memory, whose drafts were set when it was loaded."""

    def answer(self, ids: list[int], n: int, ends: list[int]) -> Answered:
        """Forget everything, run the prompt `ids`, then greedily up to `n` tokens or to one of `ends`; where there are
        none, past any end token."""
        ...


class DraftingFile(Protocol):
    """A peer's file."""

    __name__: str
    # Settings of its drafts, of which the fastest is measured, and `PLAIN`. A name, and keyword arguments of `load`.
    SETTINGS: Mapping[str, Mapping[str, Any]]

    def load(self, model: Path, threads: int, capacity: int, **settings: Any) -> Drafting:
        """Load a model for prompts and answers of up to `capacity` tokens together."""
        ...
