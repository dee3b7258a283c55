"""A profile as a trace that Perfetto (https://ui.perfetto.dev) and chrome://tracing open.

Source: Trace Event Format, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from edge.runtime.costs.record import Op, Profile
from edge.runtime.profile import graph_runs, node_costs
from edge.runtime.profile.ops import ProfiledStep

GRAPHS, MEMORY, ANSWERS = 1, 2, 3  # processes of the trace

Event = dict[str, Any]


Told = tuple[ProfiledStep, list[Event]]  # a step, and what is told of each of its nodes


def trace_json(profile: Profile, story: Sequence[ProfiledStep] = ()) -> str:
    """A trace: the graphs' steps, layers and nodes on one track each, the memory of a fresh process by kind, and the
    tokens per second of long answers.

    Args:
        story: one input and a few tokens, as `edge.runtime.profile.ops.measure` watched them, with the profiler's share
            in every node. Without it each step of the profile's operators is shown once, one node after the other.
    """
    watched = [(step, list(map(_watched, step.run.events))) for step in story]
    events = list(_graphs(watched or list(_laid_out(profile.ops))))
    if events:
        tracks = {event["args"]["graph"]: event["tid"] for event in events if event["cat"] == "step"}
        events[:0] = [_named(GRAPHS, "Graphs"), *(_named(GRAPHS, graph, track) for graph, track in tracks.items())]
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


def _watched(event: graph_runs.Event) -> Event:
    """Return the arguments of a profiled node in the trace: operator, shapes and threads."""
    return {
        "operator": event.op_type,
        "inputs": list(map(_shape, node_costs.shapes(event.inputs))),
        "outputs": list(map(_shape, node_costs.shapes(event.outputs))),
        "threads": event.threads,
    }


def _laid_out(measured: Sequence[Op]) -> Iterator[Told]:
    """One run of each step that was measured, from the times of its nodes alone."""
    start = at = 0.0
    for (graph, size, context), own in groupby(measured, key=lambda op: (op.graph, op.size, op.context)):
        nodes, events = list(own), []
        for op in nodes:
            events.append(graph_runs.Event(op.node, op.op_type, at, op.us, None, None, None))
            at += op.us
        run = graph_runs.Run(start, at - start, events)
        yield ProfiledStep(graph, size, context, run, [op.layer for op in nodes]), list(map(_figures, nodes))
        start = at


def _graphs(steps: Sequence[Told]) -> Iterator[Event]:
    """A track for each graph: its steps, their layers, and their nodes, none of which ends after what it is part of."""
    tracks: dict[str, int] = {}
    origin = steps[0][0].run.start_us if steps else 0.0
    for step, told in steps:
        track, start = tracks.setdefault(step.graph, len(tracks) + 1), step.run.start_us - origin
        end, name = start + step.run.us, f"{step.graph}, {step.size:,} rows"
        if step.context is not None:
            name = f"{'token' if step.size == 1 else f'{step.size:,} tokens'} at context {step.context:,}"
        about = {"graph": step.graph, "size": step.size, "context": step.context}
        yield _slice("step", name, track, start, end, about)
        for layer, own in groupby(zip(step.layers, step.run.events, told, strict=True), key=lambda each: each[0]):
            nodes = [(event, event.start_us - origin, args) for _, event, args in own]
            last = min(nodes[-1][1] + nodes[-1][0].us, end)
            yield _slice("layer", f"layer {layer}" if layer.isdigit() else layer, track, nodes[0][1], last, {})
            for event, begin, args in nodes:
                yield _slice("node", event.node, track, begin, min(begin + event.us, last), args)


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


def _slice(category: str, name: str, track: int, start: float, end: float, args: Event, process: int = GRAPHS) -> Event:
    """A complete event, in microseconds; nested ones of a track are drawn below one another."""
    begin, length = round(start, 3), round(max(0.0, end - start), 3)
    return {
        "name": name, "cat": category, "ph": "X", "ts": begin, "dur": length, "pid": process, "tid": track, "args": args
    }  # fmt: skip


def _named(process: int, name: str, track: int | None = None) -> Event:
    """The name of a process, or of one of its tracks."""
    what = "process_name" if track is None else "thread_name"
    return {"name": what, "ph": "M", "cat": "", "pid": process, "tid": track or 0, "args": {"name": name}}


def _shape(shape: node_costs.Shape) -> str:
    return f"{shape.kind}[{', '.join(map(str, shape.dims))}]"
