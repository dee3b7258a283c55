"""`cascade`: drafters one after the other, the next where those before have nothing to say.

`lookup` comes first, where at least two tokens matched; then `trigram`; then what followed a single token, `recycle`'s,
or `lookup`'s where the model was not sure. `recycle` continues a draft that ends early.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from edge.errors import InputError
from edge.runtime.decode.draft import NOTHING, Draft
from edge.runtime.speculate import lookup, recycle, trigram
from edge.runtime.speculate.drafter import Budget, Drafter, DrafterModule, Setting

NAME = "cascade"
HELP = "lookup, then trigram, then recycle, where those before have nothing to say"
TRAITS = {"serves": ("decoder",)}

ENOUGH = 2  # tokens of a match from which `lookup` is trusted
# What `recycle` is asked for here is what was not said before, and right less often than all that it can guess.
REST = (0.15, 0.2, 0.3, 0.45, 0.5, 0.5, 0.5, 0.35, *recycle.FROM_FILE)
# Where the grades of each drafter begin among those of all.
LOOKUP, TRIGRAM = 0, len(lookup.PRIORS)
RECYCLE = TRIGRAM + len(trigram.PRIORS)


def nbytes(setting: Setting) -> int:
    """Bytes of all drafters that there is room for."""
    return sum(module.nbytes(each) for module, each in _fitting(setting))


def make(setting: Setting) -> Cascade:
    """The drafters, those left out that there is no room for."""
    made = {module: module.make(each) for module, each in _fitting(setting)}
    return Cascade(*(made.get(module) for module in (lookup, trigram, recycle)))


def _fitting(setting: Setting) -> Iterator[tuple[DrafterModule, Setting]]:
    """The drafters that fit into the limit, in their order, each with what those before leave."""
    left = setting.limit
    for module in (lookup, trigram, recycle):
        each = dataclasses.replace(setting, limit=left)
        try:
            need = module.nbytes(each)
        except InputError:
            continue
        if left is not None:
            if need > left:
                continue
            left -= need
        yield module, each


class Cascade(Drafter):
    """Drafters in turn; None instead of one that has no room."""

    name = NAME
    priors = (*lookup.PRIORS, *trigram.PRIORS, *REST)
    reads_logits = True

    def __init__(self, first: Drafter | None, second: Drafter | None, third: Drafter | None) -> None:
        self._lookup, self._trigram, self._recycle = first, second, third
        self._all = [drafter for drafter in (first, second, third) if drafter is not None]

    def begin(self, tokens: Sequence[int], source: Sequence[int] = ()) -> None:
        for drafter in self._all:
            drafter.begin(tokens, source)

    def accept(self, tokens: Sequence[int]) -> None:
        for drafter in self._all:
            drafter.accept(tokens)

    def propose(self, context: Sequence[int], budget: Budget) -> Draft:
        weak = NOTHING
        if self._lookup is not None:
            weak = self._lookup.propose(context, budget)
            if weak.tokens and weak.grades[0] >= ENOUGH:
                return weak
        draft = NOTHING
        if self._trigram is not None:
            draft = _graded(self._trigram.propose(context, budget), TRIGRAM)
        if self._recycle is None:
            return draft if draft.tokens else weak
        if not draft.tokens:
            draft = _graded(self._recycle.propose(context, budget), RECYCLE)
            unsure = not draft.tokens or self.priors[draft.grades[0]] < self.priors[1]
            return weak if weak.tokens and unsure else draft
        rest = budget._replace(tokens=budget.tokens - len(draft.tokens))
        more = _graded(self._recycle.propose(draft.tokens[-1:], rest), RECYCLE)
        return Draft([*draft.tokens, *more.tokens], [*draft.grades, *more.grades])

    def verified(self, tokens: NDArray[np.int64], logits: NDArray[np.float32]) -> None:
        for drafter in self._all:
            if drafter.reads_logits:
                drafter.verified(tokens, logits)


def _graded(draft: Draft, first: int) -> Draft:
    """A draft whose grades are among those of all drafters, `first` the first of its own."""
    if not draft.tokens:
        return NOTHING
    return Draft(draft.tokens, [first + grade for grade in draft.grades])
