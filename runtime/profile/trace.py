"""A profile as a trace that Perfetto (https://ui.perfetto.dev) and chrome://tracing open.

Source: Trace Event Format, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from edge.runtime.profile import costs
from edge.runtime.profile.ops import Step
from edge.runtime.profile.record import Op, Profile

GRAPHS, MEMORY, ANSWERS = 1, 2, 3  # processes of the trace

Event = dict[str, Any]


def trace_json(profile: Profile, story: Sequence[Step] = ()) -> str:
    """A trace: the graphs' steps, layers and nodes on one track each, the memory of a fresh process by kind, and the
    tokens per second of long answers.

    Args:
        story: one input and a few tokens, as `edge.runtime.profile.ops.measure` watched them, with the profiler's share
            in every node. Without it each step of the profile's operators is laid out once, one node behind the other.
    """
    events = list(_told(story) if story else _laid_out(profile.ops))
    if events:
        events[:0] = [_named(GRAPHS, "Graphs"), *(_named(GRAPHS, g, t) for g, t in _tracks(events).items())]
    events += [*_memory(profile), *_answers(profile)]
    device, bundle = profile.device, profile.bundle
    content = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "bundle": bundle.name,
            "sha256": bundle.sha256,
            "device": f"{device.name}, {device.cpu}, {device.threads} threads",
            "runtime": f"{device.runtime}, {device.provider}",
            "created": profile.created,
            "times": "as onnxruntime's profiler saw them, its own share included" if story else "without the profiler",
        },
    }
    return json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n"


def _tracks(events: Sequence[Event]) -> dict[str, int]:
    """One track for each graph, by its name."""
    return {event["args"]["graph"]: event["tid"] for event in events if event["cat"] == "step"}


def _told(story: Sequence[Step]) -> Iterator[Event]:
    """Steps as they were watched."""
    origin = min(step.run.start_us for step in story)
    tracks: dict[str, int] = {}
    for step in story:
        track = tracks.setdefault(step.graph, len(tracks) + 1)
        start, end = step.run.start_us - origin, step.run.start_us - origin + step.run.us
        yield _step(track, start, end, step.graph, step.size, step.context)
        nodes = list(zip(step.layers, step.run.events, strict=True))
        for layer, own in groupby(nodes, key=lambda pair: pair[0]):
            members = [event for _, event in own]
            last = members[-1].start_us + members[-1].us - origin
            yield _slice("layer", _layer(layer), track, members[0].start_us - origin, min(last, end), {})
            for event in members:
                inputs, outputs = costs.shapes(event.inputs), costs.shapes(event.outputs)
                args = {
                    "operator": event.op_type,
                    "inputs": [_shape(shape) for shape in inputs],
                    "outputs": [_shape(shape) for shape in outputs],
                    "threads": event.threads,
                }
                begin = event.start_us - origin
                yield _slice("node", event.node, track, begin, min(begin + event.us, last, end), args)


def _laid_out(ops: Sequence[Op]) -> Iterator[Event]:
    """One run of each step that was measured, from the times of its nodes alone."""
    tracks: dict[str, int] = {}
    at = 0.0
    for (graph, size, context), own in groupby(ops, key=lambda op: (op.graph, op.size, op.context)):
        track, nodes = tracks.setdefault(graph, len(tracks) + 1), list(own)
        yield _step(track, at, at + sum(op.us for op in nodes), graph, size, context)
        for layer, members in groupby(nodes, key=lambda op: op.layer):
            inside = list(members)
            yield _slice("layer", _layer(layer), track, at, at + sum(op.us for op in inside), {})
            for op in inside:
                yield _slice("node", op.node, track, at, at + op.us, _figures(op))
                at += op.us


def _figures(op: Op) -> dict[str, Any]:
    figures: dict[str, Any] = {"operator": op.op_type, "runs measured": op.count}
    if op.us <= 0:
        return figures
    if op.bytes is not None:
        figures |= {"bytes": op.bytes, "GB/s": round(op.bytes / op.us / 1e3, 2)}
    if op.flops is not None:
        figures |= {"operations": op.flops, "GFLOP/s": round(op.flops / op.us / 1e3, 2)}
    return figures


def _memory(profile: Profile) -> Iterator[Event]:
    """A counter of bytes by kind, and the phases above it."""
    if profile.memory is None or not profile.memory.samples:
        return
    yield _named(MEMORY, "Memory of a fresh process")
    yield _named(MEMORY, "phases", 1)
    samples = profile.memory.samples
    kinds = list(dict.fromkeys(kind for sample in samples for kind in sample.kinds))
    begin = 0.0
    for phase, own in groupby(samples, key=lambda sample: sample.phase):
        end = list(own)[-1].second * 1e6
        yield _slice("phase", phase, 1, begin, end, {}, MEMORY)
        begin = end
    for sample in samples:
        megabytes = {kind: round(sample.kinds.get(kind, 0) / 1e6, 3) for kind in kinds}
        yield {"name": "MB by kind", "ph": "C", "ts": sample.second * 1e6, "pid": MEMORY, "args": megabytes}


def _answers(profile: Profile) -> Iterator[Event]:
    if profile.sustained is None or not profile.sustained.rates:
        return
    yield _named(ANSWERS, "Long answers")
    for rate in profile.sustained.rates:
        args = {"tokens/s": round(rate.tokens_per_s, 3)}
        yield {"name": "tokens/s", "ph": "C", "ts": rate.second * 1e6, "pid": ANSWERS, "args": args}


def _step(track: int, start: float, end: float, graph: str, size: int, context: int | None) -> Event:
    if context is None:
        name = f"{graph}, {size:,} rows"
    else:
        name = f"token behind {context:,}" if size == 1 else f"{size:,} tokens behind {context:,}"
    return _slice("step", name, track, start, end, {"graph": graph, "size": size, "context": context})


def _slice(category: str, name: str, track: int, start: float, end: float, args: Event, process: int = GRAPHS) -> Event:
    """A complete event, in microseconds; those within one another on a track are drawn below one another."""
    begin, length = round(start, 3), round(max(0.0, end - start), 3)
    return {
        "name": name, "cat": category, "ph": "X", "ts": begin, "dur": length, "pid": process, "tid": track, "args": args
    }  # fmt: skip


def _named(process: int, name: str, track: int | None = None) -> Event:
    """The name of a process, or of one of its tracks."""
    what = "process_name" if track is None else "thread_name"
    return {"name": what, "ph": "M", "cat": "", "pid": process, "tid": track or 0, "args": {"name": name}}


def _layer(layer: str) -> str:
    return f"layer {layer}" if layer.isdigit() else layer


def _shape(shape: costs.Shape) -> str:
    return f"{shape.kind}[{', '.join(map(str, shape.dims))}]"
