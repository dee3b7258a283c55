"""The way from a model's last hidden states to a text's vector, as sentence-transformers' files state it, or to a
pair's score, as transformers' head has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edge.embedding_format import MEAN


@dataclass(frozen=True)
class DenseNorm:
    """A layer norm over a vector: weight [N], bias [N]."""

    weight: NDArray[np.float32]
    bias: NDArray[np.float32]
    eps: float


@dataclass(frozen=True)
class Dense:
    """A linear layer over a pooled vector: weight [N, K], bias [N] or None, transformers' name of what follows, and a
    norm after that."""

    weight: NDArray[np.float32]
    bias: NDArray[np.float32] | None
    activation: str
    norm: DenseNorm | None = None


@dataclass(frozen=True)
class Pooling:
    """The making of a text's vector of its tokens'.

    mode: one of `edge.embedding_format.POOLINGS`. normalized: vectors have length 1. max_length: tokens of a text, with
    the special ones; None: as many as the model takes. prompts: texts that stand before a text, by their names; prompt:
    the one where none is named. lowercase: texts are read in small letters. pairs: a text is a pair of texts, whose
    vector is one number, its score; types: the model may tell the two apart by types of tokens.
    """

    mode: str = MEAN
    normalized: bool = False
    max_length: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    prompt: str | None = None
    lowercase: bool = False
    dense: Sequence[Dense] = ()
    pairs: bool = False
    types: bool = False
