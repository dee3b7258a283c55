"""A text that is as long as it may be ends with its end token (ForcedEOSTokenLogitsProcessor)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge.runtime.decode.rules.rule import FORBIDDEN, Processor, RuleSettings

NAME = "forced-end"
HELP = "makes a token the last one of the maximum"
TRAITS = {"stage": "scores", "order": 50}


def rule(settings: RuleSettings) -> Processor | None:
    token = settings.bundle.forced_eos
    return None if token is None else ForcedEnd(settings.most, token)


class ForcedEnd:
    """length: with the decoder's first tokens."""

    def __init__(self, length: int, token: int) -> None:
        self._length = length
        self._token = token

    def __call__(self, texts: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
        if texts.shape[1] == self._length - 1:
            scores[:] = FORBIDDEN
            scores[:, self._token] = 0
