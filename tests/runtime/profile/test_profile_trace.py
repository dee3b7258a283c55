"""The trace: what Perfetto and chrome://tracing need of it."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from typing import Any

import pytest
from profile_example import example_profile

from edge.bundle import Bundle
from edge.profile.trace import trace_json
from edge.runtime.profile import ops


def slices(trace: dict[str, Any]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    tracks = defaultdict(list)
    for event in trace["traceEvents"]:
        assert {"name", "ph", "pid"} <= set(event) and event["ph"] in "XMC"
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append(event)
    return tracks


def assert_nested(events: list[dict[str, Any]]) -> None:
    """Events of a track lie wholly within one another or side by side: else a viewer drops some."""
    open_ends: list[float] = []
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        while open_ends and event["ts"] >= open_ends[-1] - 0.002:
            open_ends.pop()
        end = event["ts"] + event["dur"]
        assert not open_ends or end <= open_ends[-1] + 0.002, event
        open_ends.append(end)


def test_a_profile_is_laid_out_step_by_step() -> None:
    profile = example_profile()
    trace = json.loads(trace_json(profile))
    tracks = slices(trace)
    for events in tracks.values():
        assert_nested(events)
    graphs = tracks[1, 1]
    names = [event["name"] for event in graphs if event["cat"] == "step"]
    assert names[0] == "decoder, 1 rows" and sum(event["cat"] == "node" for event in graphs) == len(profile.ops)
    nodes = [event for event in graphs if event["cat"] == "node"]
    assert nodes[0]["args"]["GFLOP/s"] == pytest.approx(profile.ops[0].flops / profile.ops[0].us / 1e3, abs=0.01)
    counters = [event for event in trace["traceEvents"] if event["ph"] == "C"]
    assert {event["name"] for event in counters} == {"MB by kind", "tokens/s"}
    assert {"weights", "kv", "other"} == set(next(e for e in counters if e["name"] == "MB by kind")["args"])


def test_what_was_watched_is_shown_as_it_was(pristine_tiny_bundle: Bundle) -> None:
    measured = ops.measure(pristine_tiny_bundle, context=100, sizes=(1, 16), seconds=0.1)
    trace = json.loads(trace_json(example_profile(), measured.story))
    events = slices(trace)[1, 1]
    assert_nested(events)
    steps = [event["name"] for event in events if event["cat"] == "step"]
    assert steps == ["16 tokens at context 100", *(f"token at context {100 + i}" for i in range(6))]
    named = {e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    assert {"Graphs", "decoder", "phases"} <= named
    product = next(event for event in events if event["args"].get("operator") == "MatMulNBits")
    assert product["args"]["inputs"][0] == "float[1, 16, 64]"
    assert "layer 1" in {event["name"] for event in events if event["cat"] == "layer"}


def test_a_profile_without_operators_still_has_its_memory() -> None:
    trace = json.loads(trace_json(dataclasses.replace(example_profile(), ops=[])))
    assert {event["pid"] for event in trace["traceEvents"]} == {2, 3}
    bare = dataclasses.replace(example_profile(), ops=[], memory=None, sustained=None)
    assert json.loads(trace_json(bare))["traceEvents"] == []
