"""Logits as log probabilities."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Log-probabilities of `logits` [R, V]."""
    shifted: NDArray[np.float32] = logits - logits.max(-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True))
    return shifted
