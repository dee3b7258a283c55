"""What the inputs of a matrix say of its columns: how much each varies given the others, and how much of the rounding
errors of the columns before it each takes over.

Three forms of the same: a second moment [K, K]; the rows [T, K] that it would be made of, where they are far fewer
than K; and variances alone, of inputs that say nothing of each other.

With H the moment, D the damping on its diagonal and the columns in the order of rounding, column j takes over
``S[i, j] / S[j, j]`` of the error of column i before it, S being the covariance of the columns up to j given those
after j. From a moment, S comes from its Cholesky factor. From rows X it is ``x_i M x_j``, where
``M = (I + X_after D^-1 X_after^T)^-1`` [T, T] is brought from block to block: for T < K / 3 in less than half of the
time, and H, which would be the largest array of an export, is never there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

DAMPING = 0.01  # of the mean variance, added to each
FEW = 0.4  # rows for each column, below which their moment is not made
_FACTORED = 128  # columns of a moment that are factored at a time
_TOGETHER = 256  # columns of few rows; a block of 128 takes a tenth more time, and one of 512 as well


class Walk(Protocol):
    """Errors of columns that are rounded from first to last, for some of a matrix's rows N."""

    def carried(self, columns: slice) -> Floats:
        """Return what these columns take over from the errors of all before them [columns, N]."""

    def add(self, columns: slice, errors: Floats) -> None:
        """Add the errors of these columns [columns, N], which follow those that were added before."""


class Conditions(Protocol):
    """Inputs in the order of rounding. variances [K]: of each, given those that are rounded after it."""

    variances: Floats

    def shares(self, columns: slice) -> Floats:
        """Return the shares [n, n] of up to `LAZY` neighbouring columns: [j, i] is what j takes of the error of i,
        which stands before it. What stands at the other [j, i] means nothing."""

    def walk(self, rows: int) -> Walk:
        """Return a walk over all columns for `rows` rows of the matrix."""


class Inputs(Protocol):
    """The inputs of a matrix. variances [K]: of each."""

    variances: Floats

    def conditions(self, order: NDArray[np.int64], added: Floats) -> Conditions:
        """Return the conditions of the inputs in another order. added [K]: to each variance, in that order."""


LAZY = 64  # columns whose effect on the others is applied together, as one matrix product


def damped(inputs: Inputs) -> tuple[NDArray[np.int64], Floats]:
    """The order of rounding [K], by falling variance, and what is added to each variance in that order: the damping,
    and the mean to inputs that calibration never saw, which makes theirs a plain rounding."""
    variances = inputs.variances
    seen = variances > 0
    mean = variances[seen].mean() if seen.any() else np.float32(1)
    order = np.argsort(-np.where(seen, variances, mean), kind="stable")
    return order, np.where(seen, np.float32(0), mean)[order] + np.float32(DAMPING) * mean


class Moment:
    """Inputs by their second moment [K, K]."""

    def __init__(self, values: Floats) -> None:
        self.values = values
        self.variances = values.diagonal()

    def conditions(self, order: NDArray[np.int64], added: Floats) -> Factored:
        return Factored(self.ordered(order, added))

    def ordered(self, order: NDArray[np.int64], added: Floats) -> Floats:
        """Return the moment with its columns and rows in that order, `added` on its diagonal."""
        found = self.values[order][:, order]
        found[np.diag_indices(len(found))] += added
        return found


class Factored:
    """Conditions from the factor of a moment [K, K].

    With the order turned round, H = L L^T: shares are L[k, j] / L[j, j], and variances L[j, j]^2.
    """

    def __init__(self, moment: Floats) -> None:
        lower = moment[::-1, ::-1].copy()
        _cholesky(lower)
        diagonal = lower.diagonal()[::-1]
        self.variances = np.square(diagonal)
        lower /= lower.diagonal().copy()
        self._shares = np.ascontiguousarray(lower[::-1, ::-1].T)

    def shares(self, columns: slice) -> Floats:
        return self._shares[columns, columns]

    def walk(self, rows: int) -> _FactoredWalk:
        return _FactoredWalk(self._shares, np.empty((len(self._shares), rows), np.float32))


@dataclass(frozen=True)
class _FactoredWalk:
    shares: Floats
    errors: Floats

    def carried(self, columns: slice) -> Floats:
        found: Floats = self.shares[columns, : columns.start] @ self.errors[: columns.start]
        return found

    def add(self, columns: slice, errors: Floats) -> None:
        self.errors[columns] = errors


class Few:
    """Inputs by rows of them [T, K], fewer than columns."""

    def __init__(self, rows: Floats) -> None:
        self._rows = rows
        self.variances = np.einsum("tk,tk->k", rows, rows)

    def conditions(self, order: NDArray[np.int64], added: Floats) -> Projected:
        return Projected(np.ascontiguousarray(self._rows.T)[order], added)


class Projected:
    """Conditions from rows of inputs, their transpose [K, T] in the order of rounding.

    Of column j there is ``M x_j / S[j, j]`` [T], so that the share of an earlier error is a product with its input.
    """

    def __init__(self, inputs: Floats, added: Floats) -> None:
        self._inputs = inputs
        count, rows = inputs.shape
        self.variances = np.empty(count, np.float32)
        self._taken = np.empty_like(inputs)
        self._shares = dict[int, Floats]()  # of each block by its first column
        rest = np.eye(rows, dtype=np.float32)
        for block in reversed(list(_blocks(count, _TOGETHER))):
            own = inputs[block][::-1]
            given = own @ rest
            covariance = given @ own.T
            covariance[np.diag_indices(len(own))] += added[block][::-1]
            lower = np.linalg.cholesky(covariance)
            diagonal = lower.diagonal()
            new = np.linalg.inv(lower) @ given
            rest -= new.T @ new
            self.variances[block] = np.square(diagonal)[::-1]
            self._taken[block] = (new / diagonal[:, None])[::-1]
            self._shares[block.start] = np.ascontiguousarray((lower / diagonal)[::-1, ::-1].T)

    def shares(self, columns: slice) -> Floats:
        block, inside = _within(columns)
        return self._shares[block.start][inside, inside]

    def walk(self, rows: int) -> _ProjectedWalk:
        return _ProjectedWalk(self._inputs, self._taken, self._shares, rows)


class _ProjectedWalk:
    """Of blocks that are done there is what their errors do to the rows of inputs [T, N], to which a block's are added
    when it is done: that array is large."""

    def __init__(self, inputs: Floats, taken: Floats, shares: Mapping[int, Floats], rows: int) -> None:
        self._inputs, self._taken, self._shares = inputs, taken, shares
        self._sum = np.zeros((inputs.shape[1], rows), np.float32)
        self._errors = np.empty((min(_TOGETHER, len(inputs)), rows), np.float32)  # of the block that is not done
        self._carried = np.zeros_like(self._errors)  # to that block, from those before it

    def carried(self, columns: slice) -> Floats:
        block, inside = _within(columns)
        if not inside.start and block.start:
            self._carried = self._taken[block] @ self._sum
        shares = self._shares[block.start][inside, : inside.start]
        found: Floats = self._carried[inside] + shares @ self._errors[: inside.start]
        return found

    def add(self, columns: slice, errors: Floats) -> None:
        block, inside = _within(columns)
        self._errors[inside] = errors
        if columns.stop == block.stop:  # the last block has none after it
            np.add(self._sum, self._inputs[block].T @ self._errors, out=self._sum)


def _within(columns: slice) -> tuple[slice, slice]:
    """The block of `_TOGETHER` columns that these neighbouring ones are in, and their places in it."""
    start = columns.start // _TOGETHER * _TOGETHER
    return slice(start, start + _TOGETHER), slice(columns.start - start, columns.stop - start)


class Uncorrelated:
    """Inputs that say nothing of each other, by their variances [K]."""

    def __init__(self, variances: Floats) -> None:
        self.variances = variances

    def conditions(self, order: NDArray[np.int64], added: Floats) -> Alone:
        return Alone(self.variances[order] + added)


class Alone:
    """Conditions of which no column's depend on another."""

    def __init__(self, variances: Floats) -> None:
        self.variances = variances

    def shares(self, columns: slice) -> Floats:
        count = columns.stop - columns.start
        return np.zeros((count, count), np.float32)

    def walk(self, rows: int) -> _NoWalk:
        return _NoWalk(rows)


@dataclass(frozen=True)
class _NoWalk:
    rows: int

    def carried(self, columns: slice) -> Floats:
        return np.zeros((columns.stop - columns.start, self.rows), np.float32)

    def add(self, columns: slice, errors: Floats) -> None:
        pass


def inputs_of(rows: Floats) -> Moment | Few:
    """Inputs by rows of them [T, K], in the form that takes less time and memory."""
    if len(rows) < FEW * rows.shape[1]:
        return Few(rows)
    moment: Floats = rows.T @ rows
    return Moment(moment)


def _blocks(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def _cholesky(a: Floats) -> None:
    """The lower factor of a symmetric matrix, in its lower triangle, in place: numpy's own over parts of the diagonal,
    and products for the rest, in half the time of numpy's for 500 to 4,000 columns."""
    for start in range(0, len(a), _FACTORED):
        own, below = slice(start, start + _FACTORED), slice(start + _FACTORED, None)
        a[start:, own] -= a[start:, :start] @ a[own, :start].T
        factor = a[own, own] = np.linalg.cholesky(a[own, own])
        a[below, own] = a[below, own] @ np.linalg.inv(factor).T
