"""`lookup`: what followed the longest end of the text at its latest earlier occurrence.

Saxena 2023, "Prompt Lookup Decoding", and CopySpec (2025): answers repeat their prompt and themselves. The index is
that of LZ77 compressors: a hash table gives the last place of each pair of tokens, another the place before that, and
candidates are compared backwards. A token is added in constant time; memory is four tables of fixed size.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator, Sequence

from edge.runtime.decode.draft import NOTHING, Draft
from edge.runtime.speculate.drafter import Budget, Drafter, Setting

NAME = "lookup"
HELP = "what followed the same words earlier in prompt or answer"
TRAITS = {"serves": ("decoder", "text", "audio")}

LONGEST = 15  # tokens compared; a longer match is graded like this one
SETTLED = 4  # tokens of a match that is kept while it goes on; a shorter one is looked for anew
CANDIDATES = 8  # places compared, the latest first
SMALLEST = 256  # minimum tokens of an index
SLOT = 4  # bytes
PLACE = 6 * SLOT  # for each token of the index: itself, the place before with the same hash, two slots of two tables
SPREAD = 0x9E3779B1  # 2^32 over the golden ratio: multiplying by it spreads the bits (Knuth, TAOCP 3, 6.4)

# By the length of the match; measured over greedy answers of SmolLM2-135M to 84 Spec-Bench questions, 14 of each task.
PRIORS = (0.0, 0.25, 0.46, 0.6, 0.66, 0.68, 0.72, 0.78, 0.83, 0.85, 0.85, 0.86, 0.86, 0.87, 0.9, 0.96)

# How often the best match had each length, of the rounds of 240 such answers.
SHARES = (0.262, 0.335, 0.141, 0.07, 0.058, 0.023, 0.015, 0.011, 0.006, 0.01, 0.007, 0.005, 0.004, 0.004, 0.002, 0.047)


def nbytes(setting: Setting) -> int:
    """Bytes of the index: of each token itself, the place before with the same hash, and two slots of each table."""
    return index_size(setting) * PLACE


def make(setting: Setting) -> Lookup:
    """An index of as many tokens as a text may have, or as memory has room for."""
    return Lookup(index_size(setting))


def index_size(setting: Setting, place: int = PLACE) -> int:
    """Tokens of an index, a power of two: of a text, or as many as memory has room for. place: bytes for each."""
    size = SMALLEST
    while size < setting.context and (setting.limit is None or 2 * size * place <= setting.limit):
        size *= 2
    return size


class Lookup(Drafter):
    """An index of the last `size` tokens, a power of two."""

    name = NAME
    priors = PRIORS

    def __init__(self, size: int) -> None:
        self._size = size
        self._clear()

    def _clear(self) -> None:
        size = self._size
        self._tokens = array("i", bytes(SLOT * size))  # of each place, modulo the size
        # By the hash of a pair of tokens: the last place after such a pair; and for each place the one before it.
        self._pairs = array("i", b"\xff" * (SLOT * 2 * size))
        self._before = array("i", b"\xff" * (SLOT * size))
        self._singles = array("i", b"\xff" * (SLOT * 2 * size))  # by the hash of a token: the last place after it
        self._start = self._end = 0  # places of the text's first token here, and after its last
        self._single = -1  # the place after the last token's last occurrence
        self._place, self._length = -1, 0  # the place after the match of the text's end, and the match's length

    def begin(self, tokens: Sequence[int], source: Sequence[int] = ()) -> None:
        tokens = [*source, *tokens]
        self._clear()
        self._start = self._end = max(0, len(tokens) - self._size)  # those before would be overwritten at once
        self.accept(tokens[self._start :])

    def accept(self, tokens: Sequence[int]) -> None:
        kept, pairs, before, singles = self._tokens, self._pairs, self._before, self._singles
        mask, slots = self._size - 1, 2 * self._size - 1
        place, length, end = self._place, self._length, self._end
        for token in tokens:
            if place >= 0 and kept[place & mask] == token:  # the match goes on
                place, length = place + 1, min(length + 1, LONGEST)
            else:
                place, length = -1, 0
            pair = ((kept[(end - 1) & mask] * SPREAD ^ token) * SPREAD >> 12) & slots
            single = (token * SPREAD >> 12) & slots
            kept[end & mask] = token
            end += 1
            before[end & mask] = pairs[pair]
            pairs[pair] = end
            self._single = singles[single]
            singles[single] = end
        self._place, self._length, self._end = place, length, end
        self._start = max(self._start, end - self._size)
        if self._place <= self._start:
            self._place = -1

    def propose(self, context: Sequence[int], budget: Budget) -> Draft:
        length = self.match()
        if not length:
            return NOTHING
        grades = [min(length + i, LONGEST) for i in range(budget.tokens)]
        return Draft(list(itertools.islice(self.copied(), budget.tokens)), grades)

    def match(self) -> int:
        """Length of the longest end of the text that occurred before, in tokens, up to `LONGEST`."""
        if self._place < 0 or self._length < SETTLED:
            self._search()
        return self._length if self._place >= 0 else 0

    def copied(self) -> Iterator[int]:
        """Yield the tokens that followed the match. There is no end to them: a text that repeats itself is drafted
        beyond its last token."""
        kept, mask, start, end = self._tokens, self._size - 1, self._place, self._end
        while True:
            for at in range(start, end):
                yield kept[at & mask]

    def _search(self) -> None:
        """Look for the longest match of the text's end; of equals the latest."""
        kept, mask, start, end = self._tokens, self._size - 1, self._start, self._end
        best, longest = -1, 0
        place = self._before[end & mask]
        for _ in range(CANDIDATES):
            if place <= start:
                break
            length, limit = 0, min(LONGEST, place - start)
            while length < limit and kept[(place - 1 - length) & mask] == kept[(end - 1 - length) & mask]:
                length += 1
            if length > longest:
                best, longest = place, length
                if length == LONGEST:
                    break
            place = self._before[place & mask]
        if not longest and self._single > start and kept[(self._single - 1) & mask] == kept[(end - 1) & mask]:
            best, longest = self._single, 1
        self._place, self._length = best, longest
