"""What is no number, or infinite, comes out as such in the rows that have it, and nowhere else; and all finite numbers,
however small, give the same bits with all instructions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_attention import FORMS, Shape, given, run, session_of
from kernel_products import Product, bits_of
from numpy.typing import NDArray
from quantized_matrices import matrix_of

from edge.runtime.kernels.library import VARIABLE, Kernels

WRONG = (np.nan, -np.nan, np.inf, -np.inf)
SIZES = (1e-45, 1e-40, 1.2e-38, 3.6e-37, 3.8e-37, 4.8e-35, 1e-30, 1e18, 1e37)  # of finite numbers
Floats = NDArray[np.float32]


def forms_here(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found = []
    for form in FORMS:
        monkeypatch.setenv(VARIABLE, form)
        found += [form] if kernels.calls.edge_form() is not None else []
    return found


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("inputs", "block"), [(64, 32), (200, 64), (300, 256), (96, 96)])
def test_a_row_of_a_product_is_no_number_where_one_of_its_numbers_is_none(
    kernels: Kernels, bits: int, inputs: int, block: int
) -> None:
    random = np.random.default_rng([bits, inputs])
    product = Product(kernels, matrix_of(inputs, 40, block, bits, zeros=block != inputs))
    rows = random.standard_normal((24, inputs)).astype(np.float32)
    wrong = np.arange(24) % 3 == 1
    for row in np.flatnonzero(wrong):
        rows[row, random.integers(inputs)] = random.choice(WRONG)
    expected = product(0, np.where(wrong[:, None], np.float32(1), rows))
    assert expected is not None
    for form in range(len(FORMS)):
        for count in (1, 2, 5, 24):
            made = product(form, rows[:count])
            if made is not None:
                assert np.isnan(made[wrong[:count]]).all(), FORMS[form]
                np.testing.assert_array_equal(bits_of(made[~wrong[:count]]), bits_of(expected[:count][~wrong[:count]]))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("bits", [4, 8])
def test_products_of_numbers_of_any_size_have_the_same_bits(kernels: Kernels, bits: int, size: float) -> None:
    product = Product(kernels, matrix_of(200, 40, 64, bits, zeros=True))
    rows = (np.random.default_rng(bits).standard_normal((9, 200)) * size).astype(np.float32)
    rows[:, ::5] = 0
    expected = product(0, rows)
    assert expected is not None and (np.isfinite(expected).all() or size > 1e30)
    for form in range(1, len(FORMS)):
        made = product(form, rows)
        if made is not None:
            np.testing.assert_array_equal(bits_of(made), bits_of(expected), FORMS[form])


def outputs(
    kernels: Kernels, shape: Shape, step: dict[str, NDArray[Any]], monkeypatch: pytest.MonkeyPatch
) -> list[Floats]:
    """What attention gives with each set of instructions."""
    found = []
    for form in forms_here(kernels, monkeypatch):
        monkeypatch.setenv(VARIABLE, form)
        found.append(run(session_of(shape, kernels), step)[0])
    return found


ATTENTION = {
    "floats": Shape(heads=4, kv_heads=2, dim=32, rotary=False),
    "bytes": Shape(heads=4, kv_heads=2, dim=32, rotary=False, int8=True),
    "turned floats": Shape(heads=4, kv_heads=2, dim=48),
    "turned bytes": Shape(heads=4, kv_heads=2, dim=48, int8=True),
    "a window of bytes": Shape(heads=4, kv_heads=2, dim=32, window=20, int8=True),
}


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize(("past", "tokens"), [(0, 3), (130, 1), (70, 20)])
def test_a_query_that_is_no_number_gives_none_in_its_head_alone(
    kernels: Kernels, name: str, past: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, random = ATTENTION[name], np.random.default_rng(past)
    step = given(shape, [past], tokens)
    expected = run(session_of(shape, kernels), step)[0]
    token, head = int(random.integers(tokens)), int(random.integers(shape.heads))
    query = step["query"] = step["query"].copy()
    query.reshape(tokens, shape.heads, shape.dim)[token, head, random.integers(shape.dim)] = random.choice(WRONG)
    for made in outputs(kernels, shape, step, monkeypatch):
        heads = made.reshape(tokens, shape.heads, shape.dim)
        assert np.isnan(heads[token, head]).all()
        heads[token, head] = expected.reshape(heads.shape)[token, head]
        np.testing.assert_array_equal(bits_of(made), bits_of(expected))


@pytest.mark.parametrize(
    ("part", "wrong"),
    [(part, wrong) for part in ("key", "past.key") for wrong in WRONG[:2]]  # of infinity a score may be -infinity
    + [(part, wrong) for part in ("value", "past.value") for wrong in WRONG],
)
def test_a_key_or_value_that_is_no_number_reaches_all_that_attend_to_it(
    kernels: Kernels, part: str, wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = ATTENTION["turned floats"]
    step = given(shape, [100], 4)
    array = step[part] = step[part].copy()
    if part.startswith("past"):
        array[0, 1, 40, 5] = wrong
    else:
        array.reshape(4, shape.kv_heads, shape.dim)[0, 1, 5] = wrong
    for made in outputs(kernels, shape, step, monkeypatch):
        heads = made.reshape(4, shape.heads, shape.dim)
        assert not np.isfinite(heads[:, 2:]).all(axis=2).any(), "each of those heads has one that is not finite"
        assert np.isfinite(heads[:, :2]).all(), "other heads have none"


@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_a_cache_in_8_bits_refuses_what_it_cannot_hold(
    kernels: Kernels, part: str, wrong: float, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = ATTENTION["turned bytes"]
    step = given(shape, [10], tokens)
    step[part] = step[part].copy()
    step[part][0, tokens - 1, 7] = wrong
    for form in forms_here(kernels, monkeypatch):
        monkeypatch.setenv(VARIABLE, form)
        with pytest.raises(Exception, match=f"token {tokens - 1} of {tokens} is not a number or infinite"):
            run(session_of(shape, kernels), step)


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("size", SIZES[:7])
def test_attention_of_numbers_of_any_size_has_the_same_bits(
    kernels: Kernels, int8: bool, size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = Shape(heads=4, kv_heads=2, dim=32, int8=int8)
    step = given(shape, [70], 5)
    step["query"] = (step["query"] * np.float32(size)).astype(np.float32)
    made = outputs(kernels, shape, step, monkeypatch)
    assert np.isfinite(made[0]).all()
    for other in made[1:]:
        np.testing.assert_array_equal(bits_of(other), bits_of(made[0]))
