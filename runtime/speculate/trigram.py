"""`trigram`: what most often followed the last two tokens.

Liu et al. 2024, "Adaptive Draft-Verification for Efficient Large Language Model Decoding" (ADED): tables of trigrams
stand for the model's distribution. Here they are counted from prompts and answers, over all texts of a process, in a
table of fixed size. A slot belongs to one pair of tokens and has its most frequent successors; a pair with the same
hash takes over a slot that is not used again, and lowers a count of one that is (as Misra and Gries 1982 keep frequent
items).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from edge.runtime.decode.draft import NOTHING, Draft
from edge.runtime.speculate.drafter import Budget, Drafter, Setting

NAME = "trigram"
HELP = "what most often followed the last two tokens"
TRAITS = {"serves": ("decoder", "text", "audio")}

SLOTS = 2**14
SMALLEST = 2**8
SUCCESSORS = 3  # of a pair
SLOT = 8 + SUCCESSORS * (4 + 1)  # bytes: the pair, the successors and their counts
TOKEN = 4  # bytes of one of the text
MAXIMUM = 32  # times that are counted; then all counts of the slot are halved
SPREAD = 0x9E3779B1  # 2^32 over the golden ratio: multiplying by it spreads the bits (Knuth, TAOCP 3, 6.4)

# Grades are by how often the successor came, 1, 2, 3, 4 to 7 times or more, and by its share of what was counted:
# below a half, below nine tenths, or more.
COUNTS = (0, 0, 1, 2, 3, 3, 3, 3, *([4] * (MAXIMUM - 7)))
SHARES = 3
# Measured over greedy answers of SmolLM2-135M to 240 questions of Spec-Bench.
PRIORS = (0.38, 0.46, 0.72, 0.36, 0.49, 0.91, 0.44, 0.54, 0.96, 0.32, 0.62, 0.97, 0.25, 0.43, 0.97)


def nbytes(setting: Setting) -> int:
    """Bytes of the table, and of the text, which tells a further turn of a chat from a new text."""
    return _slots(setting) * SLOT + setting.context * TOKEN


def make(setting: Setting) -> Trigram:
    """A table as large as memory has room for; InputError where there is no room for the smallest."""
    setting.check_limit("The drafter trigram", nbytes(setting))
    return Trigram(_slots(setting), setting.context)


def _slots(setting: Setting) -> int:
    slots = SLOTS
    while setting.limit is not None and slots > SMALLEST and slots * SLOT + setting.context * TOKEN > setting.limit:
        slots //= 2
    return slots


class Trigram(Drafter):
    """Counts of what followed pairs of tokens, in `slots` slots, a power of two, for texts of up to `context`."""

    name = NAME
    priors = PRIORS

    def __init__(self, slots: int, context: int) -> None:
        self._mask = slots - 1
        self._pairs = array("q", b"\xff" * (8 * slots))  # of each slot; -1 where it is free
        self._successors = array("i", bytes(4 * SUCCESSORS * slots))  # of each slot, the most frequent first
        self._counts = array("B", bytes(SUCCESSORS * slots))
        self._text = array("i", bytes(TOKEN * context))
        self._length = 0

    def begin(self, tokens: Sequence[int], source: Sequence[int] = ()) -> None:
        tokens, kept, text = [*source, *tokens], 0, self._text
        for token in tokens[: self._length]:
            if text[kept] != token:
                break
            kept += 1
        self._length = kept  # that text was counted
        self.accept(tokens[kept:])

    def accept(self, tokens: Sequence[int]) -> None:
        text, at = self._text, self._length
        for token in tokens[: len(text) - at]:
            text[at] = token
            if at > 1:
                self._count(text[at - 2], text[at - 1], token)
            at += 1
        self._length = at

    def _count(self, first: int, second: int, token: int) -> None:
        pairs, successors, counts = self._pairs, self._successors, self._counts
        pair = first << 32 | second
        slot = ((first * SPREAD ^ second) * SPREAD >> 12) & self._mask
        at = slot * SUCCESSORS
        if pairs[slot] != pair:
            if counts[at] > 1:
                counts[at] -= 1
                return
            pairs[slot] = pair
            for i in range(at, at + SUCCESSORS):
                counts[i] = 0
        last = at + SUCCESSORS - 1
        place = at
        while place < last and counts[place] and successors[place] != token:
            place += 1
        if counts[place] and successors[place] != token:  # a full slot: the rarest makes room
            counts[place] -= 1
            if counts[place]:
                return
        successors[place] = token
        counts[place] += 1
        while place > at and counts[place] >= counts[place - 1]:  # of equals the latest first
            counts[place], counts[place - 1] = counts[place - 1], counts[place]
            successors[place], successors[place - 1] = successors[place - 1], successors[place]
            place -= 1
        if counts[at] >= MAXIMUM:
            for i in range(at, at + SUCCESSORS):
                counts[i] //= 2

    def propose(self, context: Sequence[int], budget: Budget) -> Draft:
        if self._length < 2:
            return NOTHING
        return self.following(self._text[self._length - 2], self._text[self._length - 1], budget.tokens)

    def following(self, first: int, second: int, maximum: int) -> Draft:
        """The chain of up to `maximum` tokens that follows a pair."""
        pairs, successors, counts, mask = self._pairs, self._successors, self._counts, self._mask
        tokens, grades = list[int](), list[int]()
        for _ in range(maximum):
            slot = ((first * SPREAD ^ second) * SPREAD >> 12) & mask
            at = slot * SUCCESSORS
            if pairs[slot] != first << 32 | second:
                break
            count = counts[at]
            total = count + counts[at + 1] + counts[at + 2]
            share = 0 if 2 * count < total else 1 if 10 * count < 9 * total else 2
            first, second = second, successors[at]
            tokens.append(second)
            grades.append(SHARES * COUNTS[count] + share)
        return Draft(tokens, grades) if tokens else NOTHING
