"""Inputs of a matrix in three forms that say the same."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from edge.export.facts.tensors import Format
from edge.export.quantize.conditioned import LAZY, Conditions, Few, Inputs, Moment, Uncorrelated, damped, inputs_of
from edge.export.quantize.solve import Solver

Floats = NDArray[np.float32]
COLUMNS = 600  # several blocks of both sizes, the last ones cut short
UNSEEN = 7  # a column that is zero


def few_rows(rows: int = 90) -> Floats:
    """Rows of inputs [T, K] that depend on each other and vary in size, some by a thousand times."""
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, 40)) @ random.standard_normal((40, COLUMNS))
    x += 0.3 * random.standard_normal((rows, COLUMNS))
    x *= np.exp(random.standard_normal(COLUMNS))
    x[:, 100] *= 30
    x[:, UNSEEN] = 0
    return x.astype(np.float32)


def moment_of(x: Floats) -> Moment:
    return Moment(x.T @ x)


def conditions_of(inputs: Inputs) -> Conditions:
    return inputs.conditions(*damped(inputs))


def columns() -> Iterator[slice]:
    for start in range(0, COLUMNS, LAZY):
        yield slice(start, min(start + LAZY, COLUMNS))


def assert_the_same(one: Inputs, other: Inputs) -> None:
    """Compare the conditions of two inputs, and what columns take over from errors of those before them."""
    assert np.array_equal(damped(one)[0], damped(other)[0])
    found = [conditions_of(each) for each in (one, other)]
    np.testing.assert_allclose(found[0].variances, found[1].variances, rtol=2e-3)
    errors = np.random.default_rng(1).standard_normal((COLUMNS, 5)).astype(np.float32)
    walks = [each.walk(5) for each in found]
    for block in columns():
        carried = [walk.carried(block) for walk in walks]
        np.testing.assert_allclose(*carried, atol=2e-3 * max(1.0, float(np.abs(carried[0]).max())))
        shares = [np.tril(each.shares(block), -1) for each in found]
        np.testing.assert_allclose(*shares, atol=2e-3 * max(1.0, float(np.abs(shares[0]).max())))
        for walk in walks:
            walk.add(block, errors[block])


def test_few_rows_say_what_their_moment_says() -> None:
    x = few_rows()
    assert_the_same(moment_of(x), Few(x))


def test_variances_alone_say_what_a_moment_without_correlations_says() -> None:
    variances = np.random.default_rng(0).random(COLUMNS).astype(np.float32)
    assert_the_same(Moment(np.diag(variances)), Uncorrelated(variances))


@pytest.mark.parametrize(("rows", "kind"), [(90, Few), (500, Moment)])
def test_a_moment_is_made_of_many_rows_only(rows: int, kind: type) -> None:
    assert isinstance(inputs_of(few_rows(rows)), kind)


def test_a_matrix_that_is_solved_by_few_rows_errs_as_by_their_moment() -> None:
    x = few_rows()
    w = np.random.default_rng(2).standard_normal((64, COLUMNS)).astype(np.float32)
    added = 0.01 * np.square(x).sum(0).mean()

    def error(inputs: Inputs) -> float:
        change = (Solver(inputs, Format(4, 64)).solve(w).dequantize() - w).astype(np.float64)
        return float(np.square(change @ x.T).sum() + added * np.square(change).sum())

    plain = error(Uncorrelated(np.square(x).sum(0)))
    assert error(Few(x)) == pytest.approx(error(moment_of(x)), rel=0.02) and error(Few(x)) < 0.5 * plain


def test_a_matrix_in_parts_is_the_one_that_is_solved_at_once() -> None:
    solver = Solver(Few(few_rows()), Format(4, 64))
    w = np.random.default_rng(2).standard_normal((64, COLUMNS)).astype(np.float32)
    whole, parts = solver.solve(w), [solver.solve(w[rows]) for rows in (slice(0, 40), slice(40, 64))]
    for part in ("scales", "zero_points"):
        assert np.array_equal(getattr(whole, part), np.concatenate([getattr(each, part) for each in parts]))
    assert (whole.q == np.concatenate([each.q for each in parts])).mean() > 0.999  # products round by their sizes
