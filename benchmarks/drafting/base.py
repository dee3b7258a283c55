"""What a peer with drafts of its own offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Answered:
    """One greedy answer: tokens after the first, the seconds that they took, and to the first one."""

    tokens: int
    decode_s: float
    prefill_s: float


class Drafting(Protocol):
    """A model in memory, whose drafts were set when it was loaded."""

    def answer(self, ids: list[int], n: int, ends: list[int]) -> Answered:
        """Forget everything, run the prompt `ids`, then greedily up to `n` tokens or to one of `ends`."""
        ...
