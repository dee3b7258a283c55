"""A draft: tokens that may come next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Draft(NamedTuple):
    """Tokens that may come next, each after the one before it.

    grades: of each token that is not forced, an index into the drafter's `priors`. forced: the number of tokens at the
    beginning that are certain, and that the sampler has followed already.
    """

    tokens: Sequence[int]
    grades: Sequence[int]
    forced: int = 0


NOTHING = Draft((), ())
