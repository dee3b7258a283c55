"""Results that a step can be asked for, for each wanted row."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

LOGITS: Final = "logits"
TOKENS: Final = "tokens"  # the one that has the largest logit, the first of equals
CANDIDATES: Final = "candidates"  # `edge.runtime.engine.candidates.Candidates`, of logits that stay on a device


class Likeliest(NamedTuple):
    """The `top` likeliest tokens: see `Ranked`."""

    top: int


Want = Literal["logits", "tokens", "candidates"] | Likeliest


class Ranked(NamedTuple):
    """The likeliest tokens of each row, the best first, and the logarithms of their probabilities, both [R, top]."""

    logarithms: NDArray[np.float32]
    tokens: NDArray[np.int64]
