"""One matrix in integer blocks, so that its outputs on calibration data change least.

Minimises ``tr((W' - W) H (W' - W)^T)`` over integers, scales and zero points, H being the second moment of the
matrix's inputs. Zero points and first scales come from a search of each block, weighted by conditional variances;
integers from GPTQ (Frantar et al., 2023, arXiv:2210.17323) in order of falling variance with fixed blocks; then
coordinate descent over the integers and least squares over the scales take turns. On SmolLM2 the last two lower the
error of plain GPTQ by a fifth (docs/lab/quantization.md).

GPTQ is written in its equivalent form, Babai's nearest plane (Chen et al., 2025, arXiv:2507.18553), which factors H
and does not invert it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from edge.export.facts.tensors import Format, QTensor
from edge.export.quantize.conditioned import LAZY, Conditions, Factored, Inputs, Moment, damped
from edge.runtime.providers.cores import usable_cores

Floats = NDArray[np.float32]
Search = Callable[[Floats, Floats, Format], tuple[Floats, Floats]]

METHOD = "gptq"
ROUNDS = 2  # of descent and refitting; a third gains 1% of the error
COARSE = np.linspace(1.04, 0.6, 7, dtype=np.float32)  # shares of a block's full range that are tried as its scale
FINE = np.linspace(-2 / 3, 2 / 3, 5, dtype=np.float32)  # then these parts of their distance, around the best of them
_SEARCHED = 2**18  # weights whose scales are searched at a time; with fewer, threads wait for each other's calls
ROWS = 1536  # that are solved at a time, about: with fewer the calls cost more than what they do


class Solver:
    """Solves matrices that read the same inputs, in one format.

    What is found of the inputs serves all parts of a matrix. rounds: of descent and refitting, for which the inputs
    are a moment. find: instead of `search`, for scales that are not any number; they are not refitted, then.
    """

    def __init__(self, inputs: Inputs, form: Format, rounds: int = 0, find: Search | None = None) -> None:
        self._form, self._rounds, self._find = form, rounds, find
        order, added = damped(inputs)
        self._order, self._back = order, np.argsort(order)
        self._h: Floats | None = None
        if rounds:
            assert isinstance(inputs, Moment)
            self._h = inputs.ordered(order, added)
            self._conditions: Conditions = Factored(self._h)
        else:
            self._conditions = inputs.conditions(order, added)

    def solve(self, w: Floats) -> QTensor:
        """Quantize `w` [N, K]. Scales are float16 values."""
        bits, block_size, symmetric = self._form
        order, back, h = self._order, self._back, self._h
        scales, zeros = (self._find or search)(w, self._conditions.variances[back], self._form)
        q, block_of = np.empty(w.shape, np.uint8), order // block_size
        for rows in _parts(len(w), ROWS):
            problem = _Rows(np.ascontiguousarray(w[rows].T[order]), zeros[rows].T, 2**bits - 1, block_of)
            scale = np.ascontiguousarray(scales[rows].T)
            steps = _gptq(problem, self._conditions, scale)
            for _ in range(self._rounds):
                assert h is not None
                _descend(steps, problem, h, scale)
                if self._find is None:
                    _refit(steps, problem, h, scale)
            scales[rows] = scale.T
            steps += problem.zeros[block_of]
            q[rows] = steps[back].T
        return QTensor(bits, block_size, q, scales, None if symmetric else zeros.astype(np.uint8), METHOD)


def solve(w: Floats, h: Floats, form: Format, rounds: int = ROUNDS, find: Search | None = None) -> QTensor:
    """Quantize `w` [N, K] for inputs whose second moment is `h` [K, K], as `Solver` says."""
    return Solver(Moment(h), form, rounds, find).solve(w)


def _parts(rows: int, about: int) -> list[slice]:
    """Split `rows` into parts of equal size."""
    count = max(1, round(rows / about))
    cuts = [rows * i // count for i in range(count + 1)]
    return list(map(slice, cuts, cuts[1:]))


def spread(per_block: Floats, block_size: int, columns: int) -> Floats:
    """Expand [N, blocks] to [N, columns]."""
    return per_block.repeat(block_size, 1)[:, :columns]


def to_float16(scales: Floats) -> Floats:
    """Scales as float16 values. A zero scale stays usable: it becomes the smallest that float16 has."""
    return np.maximum(scales.astype(np.float16).astype(np.float32), np.float32(2.0**-24))


def search(w: Floats, weights: Floats, form: Format) -> tuple[Floats, Floats]:
    """Scale and zero point of each block [N, blocks] with the least squared error under `weights` [K]."""
    bits, block_size, symmetric = form
    n, k = w.shape
    count, top = -(-k // block_size), 2**bits - 1
    missing = count * block_size - k
    weights = np.pad(weights, (0, missing)).reshape(count, block_size)
    scales, zeros = np.empty((n, count), np.float32), np.empty((n, count), np.float32)

    def search_rows(rows: slice) -> None:
        blocks = np.pad(w[rows], ((0, 0), (0, missing)), mode="edge") if missing else w[rows]
        scales[rows], zeros[rows] = _search(blocks.reshape(-1, count, block_size), weights, top, symmetric)

    with ThreadPoolExecutor(usable_cores()) as pool:
        for _ in pool.map(search_rows, _parts(n, max(1, min(_SEARCHED // k, n // usable_cores())))):
            pass
    return scales, zeros


def nearest(w: Floats, weights: Floats, form: Format) -> QTensor:
    """Quantize `w` [N, K] with the scales that `search` finds, each weight to the nearest step."""
    scales, zeros = search(w, weights, form)
    wide, middle = (spread(each, form.block_size, w.shape[1]) for each in (scales, zeros))
    q = np.clip(np.rint(w / wide) + middle, 0, 2**form.bits - 1).astype(np.uint8)
    return QTensor(
        form.bits, form.block_size, q, scales, None if form.symmetric else zeros.astype(np.uint8), "searched"
    )


def _search(blocks: Floats, weights: Floats, top: int, symmetric: bool) -> tuple[Floats, Floats]:
    """Search as `search` does, for `blocks` [N, B, block_size] under `weights` [B, block_size], with integers up to
    `top`."""
    n, count, size = blocks.shape
    x = np.ascontiguousarray(blocks.reshape(-1, size).T)  # [block_size, N * B]: what is said of a block is a row
    weights = np.tile(weights.T, n)
    low, high = np.minimum(x.min(0), 0), np.maximum(x.max(0), 0)
    full, middle = (high - low) / np.float32(top), (high + low) / 2
    half = np.full_like(full, (top + 1) / 2)
    if symmetric:
        full, middle = 2 * np.maximum(high, -low) / np.float32(top), np.zeros_like(middle)
    least = np.full_like(full, np.inf)
    shrinks, scales, zeros = np.ones_like(full), full.copy(), half.copy()
    y, q = np.empty_like(x), np.empty_like(x)

    def attempt(shrink: Floats, *roundings: Callable[[Floats], Floats]) -> None:
        scale = to_float16(full * shrink)
        inverse = 1 / scale
        centre = np.float32(top / 2) - middle * inverse
        for zero in (half,) if symmetric else [rounding(centre).clip(0, top) for rounding in roundings]:
            np.multiply(x, inverse, out=y)
            np.add(y, zero, out=y)
            np.rint(y, out=q)
            np.clip(q, 0, top, out=q)
            np.subtract(q, y, out=q)
            np.square(q, out=q)
            np.multiply(q, weights, out=q)
            error = q.sum(0) * np.square(scale)
            better = error < least
            for best, this in ((least, error), (scales, scale), (zeros, zero), (shrinks, shrink)):
                np.copyto(best, this, where=better)

    for shrink in COARSE:
        attempt(shrink, np.rint)
    middles, distance = shrinks.copy(), COARSE[0] - COARSE[1]
    for part in FINE:
        attempt(middles + part * distance, np.floor, np.ceil)
    return scales.reshape(n, count), zeros.reshape(n, count)


class _Rows:
    """Rows of a matrix as they are solved, their columns in the order of rounding: all is [K, N] or [blocks, N].

    target: the weights. block_of: each column's block.
    """

    def __init__(self, target: Floats, zeros: Floats, top: int, block_of: NDArray[np.int64]) -> None:
        self.target = target
        self.zeros = np.ascontiguousarray(zeros)
        self.low, self.high = -self.zeros, top - self.zeros  # of steps
        self.block_of = block_of

    def rounded(self, j: int, values: Floats, out: Floats) -> None:
        """Values [N] of column j in steps, as the nearest steps."""
        block = self.block_of[j]
        np.rint(values, out=out)
        np.maximum(out, self.low[block], out=out)
        np.minimum(out, self.high[block], out=out)


def _gptq(rows: _Rows, conditions: Conditions, scale: Floats) -> Floats:
    """Steps [K, N]: column after column is rounded, after it took over its share of the errors of those before."""
    target, block_of = rows.target, rows.block_of
    k, n = target.shape
    walk, steps, inverse = conditions.walk(n), np.empty_like(target), 1 / scale
    errors, change = np.empty((LAZY, n), np.float32), np.empty(n, np.float32)
    for start in range(0, k, LAZY):
        columns = slice(start, min(start + LAZY, k))
        shares, wanted = conditions.shares(columns), target[columns] + walk.carried(columns)
        for i, value in enumerate(wanted):
            j, block = start + i, block_of[start + i]
            if i:
                np.dot(shares[i, :i], errors[:i], out=change)
                value += change
            value *= inverse[block]
            rows.rounded(j, value, steps[j])
            np.multiply(steps[j], scale[block], out=value)
            np.subtract(target[j], value, out=errors[i])
        walk.add(columns, errors[: len(wanted)])
    return steps


def _descend(steps: Floats, rows: _Rows, h: Floats, scale: Floats) -> None:
    """One sweep of coordinate descent: the step of every column in turn takes its best value, the others fixed. In
    place."""
    block_of = rows.block_of
    k, n = steps.shape
    gradient, inverse, diagonal = h @ (steps * scale[block_of] - rows.target), 1 / scale, h.diagonal()
    changes, change = np.empty((LAZY, n), np.float32), np.empty(n, np.float32)
    for start in range(0, k, LAZY):
        stop = min(start + LAZY, k)
        for j in range(start, stop):
            value, moved, block = gradient[j], changes[j - start], block_of[j]
            if j > start:
                np.dot(h[j, start:j], changes[: j - start], out=change)
                value += change
            value *= inverse[block]
            value /= -diagonal[j]
            value += steps[j]
            rows.rounded(j, value, value)
            np.subtract(value, steps[j], out=moved)
            moved *= scale[block]
            steps[j] = value
        gradient[stop:] += h[stop:, start:stop] @ changes[: stop - start]


def _refit(steps: Floats, rows: _Rows, h: Floats, scale: Floats) -> None:
    """Scales [blocks, N] by least squares, block after block, the steps fixed. In place."""
    gradient = h @ (steps * scale[rows.block_of] - rows.target)
    for block, old in enumerate(scale):
        columns = np.flatnonzero(rows.block_of == block)
        part = steps[columns]
        pull = h[:, columns] @ part  # [K, N]
        curvature = np.maximum(np.einsum("kn,kn->n", pull[columns], part), np.float32(1e-12))
        new = old - np.einsum("kn,kn->n", gradient[columns], part) / curvature
        new = to_float16(np.clip(new, np.float32(0.8) * old, np.float32(1.2) * old))
        pull *= new - old
        gradient += pull
        old[:] = new
