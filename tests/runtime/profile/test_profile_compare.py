"""Two profiles side by side: ratios, what is more than noise, and what cannot be compared."""

from __future__ import annotations

import dataclasses
import json

import pytest
from profile_example import example_profile

from edge.errors import InputError
from edge.profile.compare import Comparison, Row, compare
from edge.runtime.costs.record import Stats


def row(comparison: Comparison, name: str) -> Row:
    (found,) = (each for each in comparison.rows if each.name == name)
    return found


def test_a_device_twice_as_slow_is_worse_in_every_figure_of_time() -> None:
    comparison = compare(example_profile(), example_profile(slower=2))
    for name in ("TTFT @ 512", "token @ 2000", "step of 8 @ 128", "load, warm", "load, cold"):
        found = row(comparison, name)
        assert found.ratio == pytest.approx(2) and found.certain and found.better == "a"
    rate = row(comparison, "sustained")
    assert rate.ratio == pytest.approx(0.5) and rate.better == "a"
    assert row(comparison, "peak memory, private").better == ""
    assert comparison.differences == []


def test_the_better_one_may_be_either() -> None:
    comparison = compare(example_profile(slower=2), example_profile())
    assert {each.better for each in comparison.rows if each.certain} == {"b"}


@pytest.mark.parametrize(("noise", "certain"), [(0.02, True), (0.3, False)])
def test_a_small_difference_counts_where_there_is_little_noise(noise: float, certain: bool) -> None:
    comparison = compare(example_profile(noise=noise), example_profile(slower=1.08, noise=noise))
    assert row(comparison, "token @ 512").certain is certain


def test_what_was_measured_once_tells_no_difference() -> None:
    a, b = example_profile(), example_profile(slower=1.3)
    names = ("TTFT @ 16", "token @ 16", "token @ 16, p99", "step of 1 @ 16")
    assert all(row(compare(a, b), name).certain for name in (names[0], names[1], names[3]))

    def once(time: Stats) -> Stats:
        ms = time.p50_ms
        return Stats(count=1, p50_ms=ms, p90_ms=ms, p99_ms=ms, min_ms=ms, jitter_ms=0, low_ms=ms, high_ms=ms)

    a = dataclasses.replace(
        a,
        ttft=[dataclasses.replace(each, time=once(each.time)) for each in a.ttft],
        decode=[dataclasses.replace(each, time=once(each.time)) for each in a.decode],
        curve=[dataclasses.replace(each, low_ms=each.ms, high_ms=each.ms, count=1) for each in a.curve],
    )
    assert not any(row(compare(a, b), name).certain for name in names)


def test_rates_that_scatter_are_believed_less() -> None:
    a, b = example_profile(), example_profile(slower=1.1)
    assert a.sustained is not None and row(compare(a, b), "sustained").certain
    rates = [dataclasses.replace(a.sustained.rates[0], tokens_per_s=rate) for rate in (200.0, 300.0, 250.0)]
    shaken = dataclasses.replace(a, sustained=dataclasses.replace(a.sustained, rates=rates))
    assert not row(compare(shaken, b), "sustained").certain


def test_processor_time_of_other_inputs_is_not_compared() -> None:
    a, b = example_profile(), example_profile()
    b = dataclasses.replace(b, usage=[dataclasses.replace(use, cpu_s=2 * use.cpu_s) for use in b.usage])
    assert row(compare(a, b), "prefill, CPU per token").better == "a"
    shorter = dataclasses.replace(b, ttft=b.ttft[:1])
    assert "prefill, CPU per token" not in {each.name for each in compare(a, shorter).rows}


def test_a_machine_that_drifted_or_was_busy_is_believed_less() -> None:
    steady, a = example_profile(slower=1.08), example_profile()
    assert a.noise is not None and row(compare(a, steady), "token @ 512").certain
    for change in ({"drift": -0.1}, {"foreign_cpu": 0.2}):
        shaken = dataclasses.replace(a, noise=dataclasses.replace(a.noise, **change))
        assert not row(compare(shaken, steady), "token @ 512").certain


def test_only_what_both_have_is_compared() -> None:
    a, b = example_profile(), example_profile(kind="text")
    names = {each.name for each in compare(a, b).rows}
    assert "token @ 512" in names and not any(name.startswith("TTFT") for name in names)  # other inputs
    assert ("bundle", "paper", "paper-translator") in compare(a, b).differences
    bare = dataclasses.replace(b, decode=[], curve=[], sustained=None, load=None, memory=None, usage=[])
    with pytest.raises(InputError, match="have no figure in common"):
        compare(a, bare)


def test_encoders_are_compared_too() -> None:
    a, b = example_profile(kind="speech"), example_profile(kind="speech", slower=3)
    assert row(compare(a, b), "encode @ 1500").ratio == pytest.approx(3)


def test_the_summary_is_json() -> None:
    summary = json.loads(json.dumps(compare(example_profile(), example_profile(slower=2)).summary(), allow_nan=False))
    first = summary["rows"][0]
    assert (first["name"], first["better"], first["certain"]) == ("TTFT @ 16", "a", True)
