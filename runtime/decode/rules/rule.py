"""The protocols of rules. A rule changes which token may come next, and is one file in this folder.

The file has a name, a line of help, its traits (see `edge.registry`) and one function, `rule(settings)`: it returns the
rule for an answer with these settings, or None where they do not ask for it. TRAITS: its `stage`, which says what it
is, and its `order` within the rules of that stage. The stages follow each other:

| stage | a rule of it is | and changes |
|---|---|---|
| scores | a `Processor` | the scores of all tokens, by the text so far |
| losses | a `Lowering` | those of a few tokens, which are known before the scores are |
| logits | a `Filter` | which tokens are drawn from, by their logits |
| temperature | a `Temperature` | logits into weights |
| weights | a `Threshold` | which tokens are drawn from, by their weights |

Where the likeliest token is taken, and in a beam search, the first two are all there are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from edge.manifest import Generation, Speech

FORBIDDEN = np.float32(-np.inf)
SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)

T = TypeVar("T")


@dataclass(frozen=True)
class RuleSettings:
    """The inputs of the rules for one text.

    options: what the caller asks for: any options. bundle: the bundle's settings, for what is not asked for. ends: the
    tokens that end a text. begin: how many tokens it begins with, a prompt or the decoder's first. most: maximum tokens
    of it, with these. source: tokens of what it may repeat, such as the prompt. speech, last: of a transcription: see
    `edge.runtime.decode.rules.timestamps`.
    """

    options: object
    bundle: Generation = field(default_factory=Generation)
    ends: Collection[int] = ()
    begin: int = 0
    most: int = 0
    source: Sequence[int] = ()
    speech: Speech | None = None
    last: int | None = None

    def option(self, name: str, unset: T) -> T:
        """The value of an option; `unset` where it is None, and for answers that have no such option."""
        value: T | None = getattr(self.options, name, None)
        return unset if value is None else value


Processor = Callable[[NDArray[np.int64], NDArray[np.float32]], None]
"""Is given B texts so far as token ids [B, L], the decoder's first tokens included, and the scores of what may follow
[B, V] float32, which it changes in place: logits where one token is chosen, log probabilities in a beam search."""


class Lowering(Protocol):
    """Lowers the scores of a few tokens. It depends on token ids alone, so that a graph may keep its logits while there
    are no losses.

    losses: the amount by which the score of each token is lowered for the next choice; mostly empty.
    """

    losses: Mapping[int, float]

    def push(self, token: int) -> None:
        """Append `token` to the text."""

    def copy(self) -> Self:
        """Return a copy that follows the same text so far and goes on independently."""


class Joined:
    """Several of these rules as one: their losses of a token add up."""

    def __init__(self, rules: Sequence[Lowering]) -> None:
        self.losses: Mapping[int, float] = {}
        self._rules = rules

    def push(self, token: int) -> None:
        losses = dict[int, float]()
        for rule in self._rules:
            rule.push(token)
            for lost, loss in rule.losses.items():
                losses[lost] = losses.get(lost, 0.0) + loss
        self.losses = losses

    def copy(self) -> Joined:
        other = Joined([rule.copy() for rule in self._rules])
        other.losses = self.losses
        return other


class Filter(Protocol):
    """Leaves out tokens before one is drawn, by their logits."""

    def __call__(self, logits: NDArray[np.float32]) -> NDArray[np.intp] | None:
        """The places of the logits [N] that stay, in order; None: all."""

    def decides(self, best: NDArray[np.float32]) -> bool:
        """True if the largest logits [K] of a row, in order, decide: all tokens of the row that stay are in them."""


class Temperature(Protocol):
    """Makes weights of logits: probabilities up to a factor.

    divisor: what logits are divided by, above 0.
    """

    divisor: float

    def __call__(self, logits: NDArray[np.float32], largest: float) -> NDArray[np.float32]:
        """The weights of logits [N], of which the largest is 1. largest: of all logits."""


class Threshold(Protocol):
    """Leaves out tokens before one is drawn, by their weights. Of several the highest counts."""

    def __call__(self, weights: NDArray[np.float32]) -> float:
        """The smallest of the weights [N] that stays."""

    def decides(self, best: NDArray[np.float32]) -> bool:
        """True if the largest weights [K] of a row, in order, decide: they give the threshold of the whole row, and all
        tokens of the row that stay are in them."""
