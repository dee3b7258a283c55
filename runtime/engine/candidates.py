"""The likeliest tokens of a row of logits, which is on a device: most samplers need no others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from edge.runtime.providers.provider import Buffer, Provider

COUNT = 64  # candidates of a row


@dataclass(frozen=True)
class Candidates:
    """tokens, logits: of the likeliest tokens [K], the first ones best. whole: reads all logits [V]."""

    tokens: NDArray[np.int64]
    logits: NDArray[np.float32]
    whole: Callable[[], NDArray[np.float32]]


def candidates_of(provider: Provider, logits: Buffer) -> list[Candidates]:
    """The likeliest tokens of each row of logits [1, R, V] or [R, 1, V]."""
    values, tokens = provider.largest(logits, min(COUNT, logits.shape[-1]))
    read = partial(_row, provider, logits)
    return [Candidates(tokens[i], values[i], partial(read, i)) for i in range(len(tokens))]


def _row(provider: Provider, logits: Buffer, row: int) -> NDArray[np.float32]:
    """A row of logits, read from the device."""
    whole: NDArray[np.float32] = provider.read(logits).reshape(-1, logits.shape[-1])[row]
    return whole
