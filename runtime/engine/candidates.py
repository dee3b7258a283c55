"""The likeliest tokens of a row of logits, which is on a device: most samplers need no others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

COUNT = 64  # candidates of a row


@dataclass(frozen=True)
class Candidates:
    """tokens, logits: of the likeliest tokens [K], the first ones best. whole: reads all logits [V]."""

    tokens: NDArray[np.int64]
    logits: NDArray[np.float32]
    whole: Callable[[], NDArray[np.float32]]
