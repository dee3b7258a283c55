"""The benchmark that checks `edge profile` another way: what it calls an error, and answers without their timers."""

from __future__ import annotations

import json

import profile_checks as checks
import pytest
from profile_example import example_profile, step_ms

import edge
from edge.bundle import Bundle
from edge.runtime.decode import answer

PROFILE = json.loads(example_profile().to_json())


def test_steps_on_the_curve_have_no_error_and_others_theirs() -> None:
    on = [[size, context, step_ms(size, context)] for size in (1, 3, 5, 10) for context in (50, 700, 1900)]
    assert checks._curve(PROFILE, on)["error"] == pytest.approx(0, abs=1e-9)
    off = [[size, context, 1.2 * ms] for size, context, ms in on]
    found = checks._curve(PROFILE, off)
    assert found["error"] == pytest.approx(0.2) and all(row["bias"] == pytest.approx(0.2) for row in found["rows"])


def test_time_per_token_is_held_against_the_mean_of_before_and_after() -> None:
    before = {str(context): 0.9 * step_ms(1, context) for context in (16, 512)}
    after = {str(context): 1.3 * step_ms(1, context) for context in (16, 512)}
    found = checks._decode(PROFILE, before, after)
    assert [row["context"] for row in found["rows"]] == [16, 512] and found["error"] == pytest.approx(1 - 1 / 1.1)


def test_without_its_timers_an_answer_is_the_same(tiny_bundle: Bundle) -> None:
    model, options = edge.load(tiny_bundle.root), edge.GenerateOptions(max_tokens=12)
    timed = [piece.token_id for piece in model.stream("a b c", options)]
    with checks._without_timers(answer):
        pieces = list(model.stream("a b c", options))
    assert [piece.token_id for piece in pieces] == timed
    assert pieces[-1].timings.ttft_ms is None and pieces[-1].timings.generated_tokens == len(timed)
    assert next(iter(model.stream("a b c", options))).timings.ttft_ms is not None  # they are back
