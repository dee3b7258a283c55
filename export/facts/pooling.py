"""The way from a model's last hidden states to a text's vector, as sentence-transformers' files state it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edge.embedding_format import MEAN


@dataclass(frozen=True)
class Dense:
    """A linear layer over a pooled vector: weight [N, K], bias [N] or None, and transformers' name of what follows."""

    weight: NDArray[np.float32]
    bias: NDArray[np.float32] | None
    activation: str


@dataclass(frozen=True)
class Pooling:
    """The making of a text's vector of its tokens'.

    mode: one of `edge.embedding_format.POOLINGS`. normalized: vectors have length 1. max_length: tokens of a text, with
    the special ones; None: as many as the model takes. prompts: texts that stand before a text, by their names; prompt:
    the one where none is named. lowercase: texts are read in small letters.
    """

    mode: str = MEAN
    normalized: bool = False
    max_length: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    prompt: str | None = None
    lowercase: bool = False
    dense: Sequence[Dense] = ()
