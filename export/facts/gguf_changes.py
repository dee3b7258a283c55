"""What llama.cpp's converter changes in the tensors of a family, and what undoes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Change:
    """How a tensor of a file differs from transformers', apart from its name. A norm with a change has nothing added.

    shape: transformers', of as many values. rows, columns: the places in the file of transformers' rows and columns;
    part: the file's tensor has more rows, those of others. values: undoes what was done to the values.
    """

    shape: tuple[int, ...] | None = None
    rows: NDArray[np.int64] | None = None
    columns: NDArray[np.int64] | None = None
    part: bool = False
    values: Callable[[Floats], Floats] | None = None

    def blocks(self, size: int) -> NDArray[np.int64] | None:
        """The places in a file's row of transformers' blocks of `size` columns, whose order is another one; None where
        what is a block in one of them is none in the other."""
        if self.columns is None or len(self.columns) % size:
            return None
        blocks = self.columns.reshape(-1, size)
        first = blocks[:, 0]
        whole = not np.any(first % size) and np.array_equal(blocks, first[:, None] + np.arange(size))
        return first // size if whole else None

    def undone(self, values: Floats) -> Floats:
        """transformers' values of a file's rows, which are in transformers' order."""
        if self.columns is not None:
            values = values[:, self.columns]
        if self.values is not None:
            values = self.values(values)
        return values if self.shape is None else values.reshape(-1, *self.shape[1:])


AS_IT_IS = Change()


def decay_of_logarithm(values: Floats) -> Floats:
    """The logarithms `A_log` of a state's decay, which files have as -exp(A_log)."""
    with np.errstate(all="ignore"):  # what is no number is refused by who reads it
        return np.log(-values)


def in_turns(keys: int, each: int, dim: int) -> NDArray[np.int64]:
    """The places in a file of the channels of value heads: transformers has the heads of a key head together, files
    the first of all key heads, then the second of all. each: value heads of a key head. dim: channels of a head."""
    return np.arange(keys * each * dim).reshape(each, keys, dim).swapaxes(0, 1).reshape(-1)
