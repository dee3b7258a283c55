"""`blend`: `lookup`, and what the model usually says, each weighed by all evidence.

A token that `lookup` copies is the better evidence the longer the match, the more often the tokens before it were
followed by it earlier in the text, and where the bundle's table of successors (`edge.runtime.speculate.successors`) has
the same token. Where nothing or little matched, the table itself is followed.

Evidence adds up as log-odds (logistic regression over greedy answers of SmolLM2-135M to 324 questions of Spec-Bench).
The grade is the sum, in steps, and the kind of evidence, so that each kind is corrected by itself as answers go on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from edge.runtime.decode.draft import NOTHING, Draft
from edge.runtime.speculate import lookup
from edge.runtime.speculate.drafter import Budget, Drafter, Setting
from edge.runtime.speculate.successors import NONE, Successors, table_nbytes

NAME = "blend"
HELP = "what lookup finds, weighed, and what the model usually says by the bundle's table"
TRAITS = {"serves": ("decoder", "text", "audio")}

PLACE = lookup.PLACE + 3 * 2  # bytes for each token of the index: `lookup`'s and three counts' two slots
SPREAD = lookup.SPREAD
MAXIMUM = 255  # times that are counted

# Log-odds of a copied token: by the length of the match; by how often the token before, and the pair before, went on
# like this (`agreement`); by what the table says (`_against`), after a match of one token and of more.
LENGTHS = (0.0, -1.5, -0.36, 0.18, 0.41, 0.88, 0.88, 0.88, 0.88, 1.55, 1.55, 1.55, 1.55, 1.55, 1.55, 2.05)
AFTER_ONE = (0.41, 1.13, 1.81, 0.64, -0.03, 0.05, -0.16, -0.09, -0.54, 0.0, 0.0)
AFTER_TWO = (0.3, 0.63, 1.46, 0.52, -0.41, -0.01, -0.44, 0.59, -0.21, 0.51, 0.27)
AGAINST = ((0.53, 0.93, 1.81, 1.24, -0.27, 0.0), (-0.11, 0.43, 0.92, 1.15, -0.03, -0.27))
# Of the table's token: by its level; by how often the token before went on like this in the text; and by its rival: no
# match, a match of two tokens, the table's own token before it, or a match of one token, by how often that one came.
LEVEL = (-2.75, -2.32, -2.09, -1.43, -0.89, 0.25, 0.11, 0.86, 1.25, 2.03, 2.25, 2.75)
HERE = (-0.09, 0.18, 0.96, 0.71, 0.3, -0.16, -0.49, 0.48, -0.34, -0.64, -0.76)
NO_MATCH, RIVAL_TWO, FOLLOWING = 0.63, -0.83, 0.83
RIVAL_ONE = (0.33, -0.44, -0.42, -0.34, -0.17, -0.53, 0.83, -0.0, 0.28, 0.0, 0.0)

# Kinds of evidence: a match of one token, of up to four, of more; the table's token at the text's end, and after it.
ONE, SHORT, LONG, SAID, SAID_ON = range(5)
SCORES = 16  # grades of a kind, the first for log-odds below -2.5, the last for those above 4.5
LEAST, STEP = -3.0, 0.5
CHANCES = tuple(1 / (1 + math.exp(-(LEAST + STEP * (score + 0.5)))) for score in range(SCORES))
PRIORS = CHANCES * 5

NEVER = -math.inf
FOLLOWED = 7  # maximum tokens of a draft from the table
TABLE_BELOW = 5  # the length of a match from which on the table is not asked


def nbytes(setting: Setting) -> int:
    """Bytes of the index, the counts and the bundle's table, where there is room for it."""
    size = lookup.index_size(setting, PLACE)
    return size * PLACE + (table_nbytes(setting.bundle) if _with_table(setting, size) else 0)


def make(setting: Setting) -> Blend:
    """An index of as many tokens as a text may have or as memory has room for, and the bundle's table; BundleError
    where the table cannot be read."""
    size = lookup.index_size(setting, PLACE)
    return Blend(size, Successors(setting.bundle) if _with_table(setting, size) else None)


def _with_table(setting: Setting, size: int) -> bool:
    table, left = table_nbytes(setting.bundle), setting.limit
    return bool(table) and setting.files and (left is None or size * PLACE + table <= left)


class Blend(Drafter):
    """`lookup` over the last `size` tokens, a power of two, counts of what followed what in them, and a table."""

    name = NAME
    priors = PRIORS

    def __init__(self, size: int, table: Successors | None) -> None:
        self._lookup = lookup.Lookup(size)
        self._size = size
        self._table = table
        self._clear()

    def _clear(self) -> None:
        slots = 2 * self._size
        # By hash: how often a token was followed by any, by a certain one, and a pair by a certain one.
        self._ones, self._pairs, self._triples = bytearray(slots), bytearray(slots), bytearray(slots)
        self._second = self._last = NONE  # of the text

    def begin(self, tokens: Sequence[int], source: Sequence[int] = ()) -> None:
        self._lookup.begin(tokens, source)
        self._clear()
        self._count(source)
        self._count(tokens)

    def accept(self, tokens: Sequence[int]) -> None:
        self._lookup.accept(tokens)
        self._count(tokens)

    def _count(self, tokens: Sequence[int]) -> None:
        ones, pairs, triples, mask = self._ones, self._pairs, self._triples, 2 * self._size - 1
        second, last = self._second, self._last
        for token in tokens:
            if last != NONE:
                one = (last * SPREAD >> 12) & mask
                pair = ((last * SPREAD ^ token) * SPREAD >> 12) & mask
                triple = (((second * SPREAD ^ last) * SPREAD ^ token) * SPREAD >> 12) & mask
                if ones[one] < MAXIMUM:
                    ones[one] += 1
                if pairs[pair] < MAXIMUM:
                    pairs[pair] += 1
                if triples[triple] < MAXIMUM:
                    triples[triple] += 1
            second, last = last, token
        self._second, self._last = second, last

    def propose(self, context: Sequence[int], budget: Budget) -> Draft:
        match, first = self._lookup.match(), NONE
        if match:
            first = next(self._lookup.copied())
        third, second, last = context[-3] if len(context) > 2 else NONE, self._second, self._last
        said = None if self._table is None else self._table.after(third, second, last)
        odds = NEVER
        if said is not None and (not match or (match < 3 and said[0] != first)):
            odds = (NO_MATCH, RIVAL_ONE[self._after_one(last, first)], RIVAL_TWO)[match]
            odds += LEVEL[said[1]] + HERE[self._after_one(last, said[0])]
        if match and (draft := self._copied(match, budget, third, said, odds)).tokens:
            return draft
        return NOTHING if odds == NEVER else self._said(said, odds, min(budget.tokens, FOLLOWED), budget.min_chance)

    def _copied(self, match: int, budget: Budget, third: int, said: tuple[int, int] | None, rival: float) -> Draft:
        """`lookup`'s tokens and their grades, up to where the chance that all are accepted falls below the budget's;
        nothing where the log-odds of the first one are below the `rival`'s."""
        second, last, table, followed = self._second, self._last, self._table, 1
        maximum, min_chance = budget.tokens, budget.min_chance
        tokens, grades, accepted = list[int](), list[int](), 1.0
        # How often tokens and pairs followed each other, by hashes of which each is made from the one before.
        ones, pairs, triples, mask = self._ones, self._pairs, self._triples, 2 * self._size - 1
        one = last * SPREAD
        two = (second * SPREAD ^ last) * SPREAD
        for length, token in enumerate(self._lookup.copied(), match):
            pair, triple = (one ^ token) * SPREAD, (two ^ token) * SPREAD
            seen = ones[one >> 12 & mask], pairs[two >> 12 & mask] - followed
            odds = LENGTHS[length if length < lookup.LONGEST else lookup.LONGEST]
            odds += AFTER_ONE[agreement(seen[0], pairs[pair >> 12 & mask])]
            odds += AFTER_TWO[agreement(seen[1], triples[triple >> 12 & mask])]
            if length < TABLE_BELOW and table is not None:
                odds += AGAINST[length > 1][_against(said, token)]
            if not grades and odds < rival:
                break
            score = _score(odds)
            tokens.append(token)
            grades.append((ONE if length == 1 else SHORT if length < 5 else LONG) * SCORES + score)
            accepted *= CHANCES[score]
            if accepted < min_chance or len(tokens) == maximum:
                break
            third, second, last, followed = second, last, token, 0
            one, two = token * SPREAD, pair
            if length + 1 < TABLE_BELOW and table is not None:
                said = table.after(third, second, last)
        return Draft(tokens, grades)

    def _said(self, said: tuple[int, int] | None, odds: float, maximum: int, min_chance: float) -> Draft:
        """The chain of the table, from what it says after the text, which has these log-odds, up to where the chance
        that all of it is accepted falls below `min_chance`."""
        second, last, table = self._second, self._last, self._table
        tokens, grades, kind, accepted = list[int](), list[int](), SAID, 1.0
        while said is not None and len(tokens) < maximum and table is not None:
            score = _score(odds)
            tokens.append(said[0])
            grades.append(kind * SCORES + score)
            accepted *= CHANCES[score]
            if accepted < min_chance:
                break
            third, second, last = second, last, said[0]
            said = table.after(third, second, last)
            if said is not None:
                kind, odds = SAID_ON, FOLLOWING + LEVEL[said[1]] + HERE[self._after_one(last, said[0])]
        return Draft(tokens, grades)

    def _after_one(self, last: int, token: int) -> int:
        """Class of how often `token` followed the token `last`: see `agreement`."""
        mask = 2 * self._size - 1
        count = self._pairs[((last * SPREAD ^ token) * SPREAD >> 12) & mask]
        return agreement(self._ones[(last * SPREAD >> 12) & mask], count)


def agreement(seen: int, same: int) -> int:
    """The class of `same` of `seen` times with the same token: 0 for up to one time; 1 and 2 where all of two or more
    were; 3 to 8 by the share (a half, a fifth, less) of several times or of one; 9 and 10 where none of up to three or
    of more was."""
    if seen < 2:
        return 0
    if not same:
        return 9 if seen < 4 else 10
    if same >= seen:
        return 1 if seen == 2 else 2
    return (3 if 2 * same >= seen else 5 if 5 * same >= seen else 7) + (same == 1)


def _against(said: tuple[int, int] | None, token: int) -> int:
    """Class of what the table says about a copied token: 0 for nothing; 1, 2, 3 for the same token at a low, middle or
    high level; 4, 5 for another token at a low or a higher level."""
    if said is None:
        return 0
    if said[0] == token:
        return 1 if said[1] < 4 else 2 if said[1] < 8 else 3
    return 4 if said[1] < 4 else 5


def _score(odds: float) -> int:
    score = int((odds - LEAST) / STEP)
    return 0 if score < 0 else score if score < SCORES else SCORES - 1
