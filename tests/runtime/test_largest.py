"""The largest of many numbers are found as sorting finds them."""

from __future__ import annotations

import numpy as np
import pytest

from edge.runtime.largest import STRIDE, largest, largest_of_each


@pytest.mark.parametrize("width", [1, 8, 63, 8 * STRIDE - 1, 8 * STRIDE, 7001, 49157])
@pytest.mark.parametrize("kind", ["all different", "many equal", "many forbidden"])
def test_they_are_found_in_order_the_first_of_equals_first(width: int, kind: str) -> None:
    rng = np.random.default_rng(width)
    rows = rng.standard_normal((3, width)).astype(np.float32)
    if kind == "many equal":
        rows = np.round(2 * rows)
    if kind == "many forbidden":
        rows[rng.random(rows.shape) < 0.9] = -np.inf
    count = min(8, width)
    expected = np.argsort(-rows, axis=1, kind="stable")[:, :count]
    values, places = largest_of_each(rows, count)
    np.testing.assert_array_equal(places, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(rows, expected, axis=1))
    np.testing.assert_array_equal(largest(rows[1], count)[1], expected[1])


def test_what_is_no_number_comes_last() -> None:
    row = np.full(8 * STRIDE, np.nan, np.float32)
    row[[100, 5, 7]] = [3, 2, -np.inf]
    values, places = largest(row, 5)
    np.testing.assert_array_equal(places[:3], [100, 5, 7])
    assert np.isnan(values[3:]).all()
