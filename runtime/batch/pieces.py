"""How many tokens of a prompt are read at a time beside answers that grow."""

from __future__ import annotations

SHORTEST = 4  # tokens
SLOWER = 1.15  # as much longer may a piece by itself take than a step of those that grow, or than the shortest piece
MIXED_SLOWER = 1.8  # and a step of those that grow with a piece of a prompt
FORGETS = 4  # steps in which what a step takes is forgotten, by and by


class Pieces:
    """The size of a prompt's pieces, found by how long they take: a step reads all weights, so that up to some number
    more tokens cost next to nothing.

    Args:
        most: tokens of a step.
        mixed: whether a piece is read in the same step as the next tokens of those that grow.
    """

    def __init__(self, most: int, *, mixed: bool) -> None:
        self._most, self._mixed = most, mixed
        self._step_s = self._shortest_s = 0.0  # what a step of those that grow takes, and the shortest piece
        self.size = min(SHORTEST, most)

    def grew(self, took_s: float) -> None:
        """Learn what a step took of those that grow, without a piece."""
        self._step_s = _moved(self._step_s, took_s)

    def read(self, took_s: float) -> None:
        """Let the next piece be longer where one of `size` took little time, else shorter."""
        if self.size <= SHORTEST:
            self._shortest_s = _moved(self._shortest_s, took_s)
        if self._mixed:  # not of a stand-in where the step itself is known: others wait for that
            limit = MIXED_SLOWER * (self._step_s or self._shortest_s)
        else:
            limit = SLOWER * max(self._step_s, self._shortest_s)
        if took_s <= limit:
            self.size = min(self._most, self.size + max(1, self.size // 4))
        else:
            self.size = max(min(SHORTEST, self._most), min(self.size - 1, int(self.size * limit / took_s)))


def _moved(mean_s: float, took_s: float) -> float:
    return mean_s + (took_s - mean_s) / (FORGETS if mean_s else 1)
