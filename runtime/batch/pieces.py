"""How many tokens of a prompt are read at a time beside answers that grow. A step reads all weights, so that up to some
number more tokens cost next to nothing; the number is found by how long steps take."""

from __future__ import annotations

SHORTEST = 4  # tokens
SLOWER = 1.15  # as much longer may a piece by itself take than a step of those that grow, or than the shortest piece
MIXED_SLOWER = 2.0  # and a step of those that grow with a piece of a prompt
FORGETS = 4  # steps in which what a step takes is forgotten, by and by
AGAIN = 16  # steps with pieces after which it is measured again what a step takes without one
LONGER = 1.2  # where it seems to take as much longer than before, it is measured twice: one may be slow by whatever
TOO_SLOW = 1.5  # where a step with a piece takes as much longer than it may, it is measured at once


class Pieces:
    """Pieces that are read by themselves, between the steps of those that grow.

    Args:
        most: tokens of a step.
    """

    slower = SLOWER

    def __init__(self, most: int) -> None:
        self._most, self._least = most, min(SHORTEST, most)
        self._step_s = self._shortest_s = 0.0  # what a step of those that grow takes, and the shortest piece
        self.size = self._least

    def beside(self, growing: int) -> int:
        """Tokens of the next piece, beside so many answers that grow."""
        return self.size

    def grew(self, growing: int, took_s: float) -> None:
        """Learn what a step took of those that grow alone."""
        self._step_s = _moved(self._step_s, took_s)

    def read(self, growing: int, size: int, took_s: float) -> None:
        """Let the next piece be longer where one of `size` took little time, else shorter."""
        if size != self.size:  # the last one of a prompt
            return
        if size == self._least:
            self._shortest_s = _moved(self._shortest_s, took_s)
        self._resize(took_s, max(self._step_s, self._shortest_s))

    def _resize(self, took_s: float, step_s: float) -> None:
        limit = self.slower * step_s
        fits = int(self.size * limit / max(took_s, limit / 2, 1e-9))  # at most twice as many
        if took_s <= limit:
            self.size = min(self._most, max(fits, self.size + max(1, self.size // 4)))
        else:
            self.size = max(self._least, min(fits, self.size - 1))


class MixedPieces(Pieces):
    """Pieces that are read in the same steps as the next tokens of those that grow. What such a step takes without one
    depends on how many grow, and on how long their texts are: where it is not known, or not any more, the next step has
    no piece."""

    slower = MIXED_SLOWER

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._steps_s: dict[int, float] = {}  # by how many grow
        self._doubted_s: dict[int, float] = {}  # what was measured once, and seems long
        self._left: dict[int, int] = {}  # steps with pieces until it is measured again

    def beside(self, growing: int) -> int:
        """The same; 0 where a step shall have none."""
        return self.size if self._left.get(growing, 0) else 0

    def grew(self, growing: int, took_s: float) -> None:
        if growing not in self._doubted_s and took_s > LONGER * self._steps_s.get(growing, 0.0):
            self._doubted_s[growing] = took_s
            self._left[growing] = 0
            return
        self._steps_s[growing] = min(took_s, self._doubted_s.pop(growing, took_s))
        self._left[growing] = AGAIN

    def read(self, growing: int, size: int, took_s: float) -> None:
        self._left[growing] -= 1
        if size != self.size:
            return
        if size > self._least and took_s > TOO_SLOW * self.slower * self._steps_s[growing]:
            self._left[growing] = 0  # texts may be longer than they were
        self._resize(took_s, self._steps_s[growing])


def _moved(mean_s: float, took_s: float) -> float:
    return mean_s + (took_s - mean_s) / (FORGETS if mean_s else 1)
