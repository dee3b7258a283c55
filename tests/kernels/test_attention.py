"""Attention of our kernels: what onnxruntime's operator gives, and the same bits whatever computes it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernel_attention import FORMS, Shape, given, run, session_of

from edge.runtime.kernels.library import VARIABLE, Kernels

SHAPES = {
    "plain": Shape(),
    "packed": Shape(packed=True),
    "window": Shape(window=50),
    "tree": Shape(bias=1),
    "bias of each head": Shape(bias=9, rotary=False),
    "wide heads": Shape(heads=4, kv_heads=1, dim=256),
    "small heads": Shape(heads=4, kv_heads=2, dim=16),
    "a head of its own": Shape(heads=4, kv_heads=4, dim=80, rotary=False),
    "bounded": Shape(attributes={"softcap": 2.0}),
    "bounded, in a window": Shape(window=50, attributes={"softcap": 0.7}),
    "sinks": Shape(sinks=True),
    "sinks, in a window": Shape(packed=True, window=50, sinks=True),
    "sinks, a tree": Shape(bias=1, sinks=True, attributes={"softcap": 2.0}),
    "the widest heads": Shape(heads=2, kv_heads=1, dim=512),
}
SHARED = {"another layer's keys": Shape(shared=True), "in a window": Shape(shared=True, window=50)}


def skip_old(kernels: Kernels, shape: Shape) -> None:
    """Skip what libraries of the same interface may be too old for."""
    if (shape.attributes or shape.shared or shape.dim > 256) and not kernels.attention.more:
        pytest.skip("edge-lm-kernels are older than this kind of attention; build them again")
    if shape.sinks and not kernels.attention.sinks:
        pytest.skip("edge-lm-kernels are older than sinks; build them again")


@pytest.mark.parametrize("name", [*SHAPES, *SHARED])
@pytest.mark.parametrize(("past", "tokens"), [(0, 1), (0, 37), (5, 1), (63, 2), (130, 1), (200, 5), (129, 100)])
def test_it_is_what_onnxruntime_computes(kernels: Kernels, name: str, past: int, tokens: int) -> None:
    shape = (SHAPES | SHARED)[name]
    skip_old(kernels, shape)
    step = given(shape, [past], tokens)
    for mine, theirs in zip(run(session_of(shape, kernels), step), run(session_of(shape, None), step), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=3e-6, rtol=2e-5)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(("past", "tokens"), [(0, 1), (0, 37), (63, 2), (130, 1), (129, 100)])
def test_over_bytes_too(kernels: Kernels, name: str, past: int, tokens: int) -> None:
    shape = replace(SHAPES[name], int8=True)
    skip_old(kernels, shape)
    step = given(shape, [past], tokens)
    mine, theirs = run(session_of(shape, kernels), step), run(session_of(shape, None), step)
    np.testing.assert_allclose(mine[0], theirs[0], atol=2e-3)  # a new row may be rounded to the next byte
    for ours, other in zip(mine[1:], theirs[1:], strict=True):
        difference = np.abs(ours.astype(np.int32) - other)
        assert difference.max() <= 1
        assert (difference > 0).mean() < 1e-3


def test_each_sequence_of_a_batch_has_rows_of_its_own(kernels: Kernels) -> None:
    shape = Shape()
    step = given(shape, [3, 140, 70], 1)
    mine, theirs = run(session_of(shape, kernels), step), run(session_of(shape, None), step)
    np.testing.assert_allclose(mine[0], theirs[0], atol=3e-6, rtol=2e-5)


MIXED = ["plain", "packed", "window", "bounded", "sinks", "wide heads", "a head of its own"]


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("piece", [1, 5, 37])
def test_a_token_of_each_text_and_several_of_the_last_are_as_if_each_text_were_alone(
    kernels: Kernels, name: str, int8: bool, piece: int
) -> None:
    if not kernels.attention.mixed:
        pytest.skip("edge-lm-kernels are older than mixed steps; build them again")
    shape, past = replace(SHAPES[name], int8=int8), [3, 140, 0, 70]
    session, counts = session_of(shape, kernels), [1, 1, 1, piece]
    each = [given(shape, [rows], count) for rows, count in zip(past, counts, strict=True)]
    random = np.random.default_rng(11)
    for step in each:  # others' are not the same
        step["query"] = random.standard_normal(step["query"].shape, np.float32)
    alone = [run(session, step) for step in each]
    by_text = "past.key", "past.value", "last"
    row = {
        key: np.concatenate([step[key] for step in each], axis=int(key not in by_text))
        for key in each[0]
        if key != "total"
    }
    row["total"] = np.array([max(rows + count for rows, count in zip(past, counts, strict=True))], np.int32)
    made, *cache = run(session, row)
    wanted = np.concatenate([found[0] for found in alone], axis=1)
    np.testing.assert_array_equal(made.view(np.uint32), wanted.view(np.uint32))
    for mine, theirs in zip(cache, zip(*(found[1:] for found in alone), strict=True), strict=True):
        np.testing.assert_array_equal(mine, np.concatenate(theirs))


@pytest.mark.parametrize(("change", "sentence"), [
    ({"last": [3, 140, 70]}, "seqlens_k has 3 numbers and must have 4"),
    ({"last": [3, 140, 0, 3]}, "seqlens_k is 3"),  # the last text has five tokens
    ({"last": [3, 140, 0, 300]}, "seqlens_k is 300"),
    ({"last": [-1, 140, 0, 74]}, "seqlens_k is -1"),
    ({"total": [4]}, "total_sequence_length is 4"),
    ({"total": [305]}, "total_sequence_length is 305"),
])  # fmt: skip
def test_texts_in_a_row_that_do_not_fit_are_refused(
    kernels: Kernels, change: dict[str, list[int]], sentence: str
) -> None:
    if not kernels.attention.mixed:
        pytest.skip("edge-lm-kernels are older than mixed steps; build them again")
    step = given(Shape(), [3, 140, 0, 70], 1)
    for name in ("query", "key", "value"):
        step[name] = np.zeros((1, 8, step[name].shape[2]), np.float32)
    step |= {"positions": np.zeros((1, 8), np.int64), "last": np.array([3, 140, 0, 74], np.int32)}
    session = session_of(Shape(), kernels)
    assert len(run(session, step)) == 3
    with pytest.raises(Exception, match=sentence):
        run(session, step | {name: np.array(value, np.int32) for name, value in change.items()})
    with pytest.raises(Exception, match="the number of sequences of past_key is 4"):
        run(session, step | {name: step[name][:, :3].copy() for name in ("query", "key", "value", "positions")})


@pytest.mark.parametrize("int8", [False, True])
def test_another_layers_keys_are_as_if_they_were_its_own(kernels: Kernels, int8: bool) -> None:
    """Keys and values that a layer has written, read by one that has none: the same bits."""
    own = Shape(int8=int8)
    skip_old(kernels, replace(own, shared=True))
    step = given(own, [130], 5)
    made, *written = run(session_of(own, kernels), step)
    none = {name: step[name][:, :0] for name in ("key", "value")}
    past = {f"past.{part}": each for part, each in zip(("key", "value"), written, strict=True)}
    shared, *left = run(session_of(replace(own, shared=True), kernels), step | none | past)
    np.testing.assert_array_equal(made.view(np.uint32), shared.view(np.uint32))
    for mine, theirs in zip(left, written, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("int8", [False, True])
def test_instructions_make_no_difference(
    kernels: Kernels, name: str, int8: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = replace(SHAPES[name], int8=int8)
    skip_old(kernels, shape)
    for past, tokens in ((0, 37), (130, 3), (129, 100)):
        step, found = given(shape, [past], tokens), []
        for form in FORMS:
            monkeypatch.setenv(VARIABLE, form)
            if kernels.calls.edge_form() is not None:  # on this processor
                found.append(run(session_of(shape, kernels), step))
        for other in found[1:]:
            for mine, theirs in zip(other, found[0], strict=True):
                np.testing.assert_array_equal(mine.view(np.uint8), theirs.view(np.uint8))


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("window", [-1, 50])
def test_how_many_tokens_a_step_has_makes_no_difference(kernels: Kernels, int8: bool, window: int) -> None:
    """One step of 120 tokens, and the same in steps of other sizes."""
    shape = Shape(int8=int8, window=window)
    session, whole = session_of(shape, kernels), given(shape, [100], 120)
    wanted, *cache = run(session, whole)
    for sizes in ((1,), (2,), (7,), (16,), (17, 3), (50,)):
        past, at, i = [whole["past.key"], whole["past.value"]], 0, 0
        while at < 120:
            count = min(sizes[i % len(sizes)], 120 - at)
            step = {name: whole[name][:, at : at + count] for name in ("query", "key", "value", "positions")}
            step |= {"past.key": past[0], "past.value": past[1]}
            step["last"] = np.array([100 + at + count - 1], np.int32)
            step["total"] = np.array([100 + at + count], np.int32)
            made, *past = run(session, {name: np.ascontiguousarray(array) for name, array in step.items()})
            np.testing.assert_array_equal(made.view(np.uint32), wanted[:, at : at + count].copy().view(np.uint32))
            at, i = at + count, i + 1
        for mine, theirs in zip(past, cache, strict=True):
            np.testing.assert_array_equal(mine[:, :, :220], theirs[:, :, :220])
