"""A draft: tokens that may come next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Draft(NamedTuple):
    """Tokens that may come next, each after the one before it.

    grades: of each token, an index into the drafter's `priors`.
    """

    tokens: Sequence[int]
    grades: Sequence[int]


NOTHING = Draft((), ())
