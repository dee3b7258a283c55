"""`input`: the input goes on as it did where the output has followed it so far.

Ge et al. 2022, "Lossless Acceleration for Seq2seq Generation with Aggressive Decoding", section 3: the output begins as
the input does; where they differ, the output's end is looked for in the input, and the draft goes on from there. The
paper drafts all that is left of the input; here the planner cuts it.
"""

from __future__ import annotations

from collections.abc import Sequence

from edge.runtime.decode.draft import NOTHING, Draft
from edge.runtime.speculate.drafter import Budget, Drafter, Setting

NAME = "input"
HELP = "the input of a text-to-text model, where the output resembles it"
TRAITS = {"serves": ("text",)}

LONGEST = 4  # equal tokens in a row after which it no longer matters how many there were
# By the number of equal tokens in a row before it.
PRIORS = (0.67, 0.5, 0.67, 0.75, 0.8)
PLACE = 100  # bytes of an input's token: itself, and its place among those of the same token


def nbytes(setting: Setting) -> int:
    """Bytes of the input and its index, and as many for each of the output's tokens."""
    return setting.context * PLACE


def make(setting: Setting) -> Input:
    """Nothing is kept from one input for the next."""
    return Input()


class Input(Drafter):
    """The place in the input that the output has reached."""

    name = NAME
    priors = PRIORS

    def begin(self, tokens: Sequence[int], source: Sequence[int] = ()) -> None:
        self._source = source
        self._places = dict[int, list[int]]()
        for place, token in enumerate(source):
            self._places.setdefault(token, []).append(place)
        self._said = list[int]()
        self._at = 0  # the place in the source of the token that is expected next
        self._run = 0  # tokens before it that were equal

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._said.append(token)
            if self._at < len(self._source) and token == self._source[self._at]:
                self._at, self._run = self._at + 1, self._run + 1
            else:
                self._at, self._run = self._find()

    def propose(self, context: Sequence[int], budget: Budget) -> Draft:
        tokens = self._source[self._at : self._at + budget.tokens]
        return Draft(tokens, [min(self._run + i, LONGEST) for i in range(len(tokens))]) if tokens else NOTHING

    def _find(self) -> tuple[int, int]:
        """The place after the longest end of the output in the input, of equals the nearest to the last; without one, a
        token is taken for replaced by another."""
        best, longest = self._at + 1, 0
        for place in self._places.get(self._said[-1], ()):
            run = 1
            while run < min(LONGEST, place + 1, len(self._said)) and (
                self._said[-1 - run] == self._source[place - run]
            ):
                run += 1
            if (run, -abs(place + 1 - self._at)) > (longest, -abs(best - self._at)):
                best, longest = place + 1, run
        return best, longest
