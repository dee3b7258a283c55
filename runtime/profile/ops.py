"""Where the time of a bundle's graphs goes: per node, with the bytes it moves and its operations.

onnxruntime's profiler costs several microseconds a node, as much as a small operator itself. So every run with the
profiler follows one without, and what the profiler added is taken off again: the times of a graph's nodes add up to the
median of the runs without it.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.errors import InputError
from edge.manifest import LONGER, Manifest
from edge.runtime.engine.engine import PREFILL_CHUNK
from edge.runtime.profile import costs, graph_runs
from edge.runtime.profile.graph_file import Node, read_graph
from edge.runtime.profile.graph_runs import Event, Run
from edge.runtime.profile.record import Op
from edge.runtime.profile.subject import source_tokens
from edge.runtime.providers import AUTO, open_provider
from edge.runtime.providers.base import Binding, Provider

CONTEXT = 512  # tokens in the KV cache, where the bundle takes so many
WARM, LEAST, MOST = 2, 5, 40  # runs of each graph and size: not measured, at least, at most
STORY = 6  # output tokens of the run that the trace shows
KEPT = 0.2  # of a node's time, at least, when as much is taken off each
STEPS = ("decoder", "prefill")  # graphs that are run in steps over the KV cache
LAYER = re.compile(r"(?:^|/)layers\.(\d+)(?:/|$)")
OUTSIDE = "inputs"  # what stands before the first node whose name says where it belongs

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Step:
    """One run of a graph, for the trace: a prompt's chunk, a token, or an encoder's or frontend's run."""

    graph: str
    size: int
    context: int | None
    run: Run
    layers: list[str]  # of each of the run's events


@dataclass(frozen=True)
class Measured:
    """What `measure` found."""

    ops: list[Op]
    story: list[Step] = field(default_factory=list)  # one input and a few tokens, one after another, profiler included
    notes: list[str] = field(default_factory=list)


def measure(
    bundle: Bundle,
    *,
    provider: Provider | None = None,
    context: int | None = None,
    limit: int | None = None,
    sizes: Sequence[int] = (1, PREFILL_CHUNK),
    seconds: float = 10.0,
    progress: Progress = lambda what: None,
) -> Measured:
    """Time in every node of a bundle's graphs: a decoder's steps of `sizes` tokens behind `context` tokens, its int8
    prefill graph's step of a prompt, an encoder's and a frontend's run.

    It opens every graph twice, and so takes about twice the memory of a model that runs.

    Args:
        provider: what runs the graphs; default: the best that this machine has.
        context: default: 512, or what the limit has room for.
        limit: most tokens in the KV cache, those of the step included; default: as many as the bundle takes.
        sizes: tokens of a step; those that the bundle's context cannot hold are left out.
        seconds: about how long it may take. Every graph is run a few times in any case.

    Raises:
        InputError: a context that the bundle cannot take, or no place for the profiler's temporary files.
        BundleError: a graph cannot be loaded.
    """
    manifest = bundle.manifest
    provider = provider or open_provider(AUTO, manifest=manifest)
    limit = manifest.context if limit is None else min(limit, manifest.context)
    fitting = [size for size in sizes if size <= limit // 2]
    most = limit - max([*fitting, STORY + 1])
    if not fitting or most < 0:
        raise InputError(f"A context of {limit} tokens is too small to measure operators.")
    context = min(CONTEXT, most) if context is None else context
    if not 0 <= context <= most:
        raise InputError(f"Operators are measured behind 0 to {most} tokens with this bundle, not {context}.")
    try:
        with tempfile.TemporaryDirectory(prefix="edge-ops-") as folder:
            progress("opening the graphs with onnxruntime's profiler")
            prefix = Path(folder) / "ops"
            return _Measuring(provider, bundle, prefix, context, fitting, limit).measure(seconds, progress)
    except OSError as e:
        why = (e.strerror or str(e)).rstrip(".")
        raise InputError(
            f"Operators could not be measured, for onnxruntime's profiler needs temporary files: {why}; set TMPDIR to "
            "a folder with room for 100 MB."
        ) from None


@dataclass
class _Job:
    """One graph at one size: both sessions, bound to the same arrays, and what was measured."""

    graph: str
    size: int
    context: int | None
    buffers: tuple[graph_runs.Buffers, graph_runs.Buffers]  # inputs and outputs, which bindings do not keep alive
    plain: Binding
    profiled: Binding
    plain_us: list[float] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)  # places among all runs of the graph's profiled session


class _Measuring:
    def __init__(
        self, provider: Provider, bundle: Bundle, prefix: Path, context: int, sizes: Sequence[int], limit: int
    ) -> None:
        self._provider, self._bundle, self._context = provider, bundle, context
        manifest = bundle.manifest
        self._rows = source_tokens(manifest) or 0
        self._sessions = graph_runs.sessions(provider, bundle, prefix)
        self._counts = dict.fromkeys(self._sessions, 0)  # runs of each profiled session
        cross = graph_runs.made_up_cross(provider, manifest, self._rows)
        steps = [("decoder", size) for size in sizes]
        if "prefill" in self._sessions:  # reads prompts, in longer steps where they fit
            steps += [("prefill", min(LONGER * max(sizes), limit))]
        capacity = min(context + max(STORY + 1, *(size for _, size in steps)), limit)
        cache = graph_runs.made_up_cache(provider, manifest, capacity, cross)
        self._steps = {size: graph_runs.DecoderStep(manifest, cache, size) for _, size in steps}
        self._jobs = [self._job(role, self._rows, None) for role in self._sessions if role not in STEPS]
        self._jobs += [self._job(role, size, self._steps[size]) for role, size in steps]
        self._story: list[tuple[str, int, int | None, int]] = []

    def measure(self, seconds: float, progress: Progress) -> Measured:
        for job in self._jobs:
            progress(f"operators of the {job.graph}, {job.size} at a time")
            self._repeat(job, seconds / len(self._jobs))
        self._tell()
        runs = {role: graph_runs.finish(profiled) for role, (_, profiled) in self._sessions.items()}
        ops, slowed = list[Op](), list[tuple[float, _Job, float, float]]()
        for job in self._jobs:
            path = self._bundle.path(self._bundle.manifest.graph(job.graph).path)
            seen = [runs[job.graph][i] for i in job.runs]
            plain, profiled = float(np.median(job.plain_us)), float(np.median([run.us for run in seen]))
            ops += _ops(self._bundle.manifest, read_graph(path), job, seen, plain)
            slowed.append((profiled / plain, job, plain, profiled))
        _, job, plain, profiled = max(slowed, key=lambda each: each[0])
        note = (
            f"onnxruntime's profiler slows the {job.graph} down, {job.size} at a time, from {plain / 1e3:.3g} to "
            f"{profiled / 1e3:.3g} ms; what it adds to each node is taken off the times of operators."
        )
        story = [
            Step(graph, size, context, runs[graph][place], layers(runs[graph][place].events))
            for graph, size, context, place in self._story
        ]
        return Measured(ops, story, [note])

    def _job(self, role: str, size: int, step: graph_runs.DecoderStep | None) -> _Job:
        plain, profiled = self._sessions[role]
        inputs = step.inputs if step else graph_runs.encoder_inputs(self._provider, self._bundle.manifest, plain, size)
        outputs = step.outputs if step else {}
        return _Job(
            role,
            size,
            min(self._context, step.room) if step else None,
            (inputs, outputs),
            graph_runs.bind(plain, inputs, outputs),
            graph_runs.bind(profiled, inputs, outputs),
        )

    def _repeat(self, job: _Job, seconds: float) -> None:
        if job.context is not None:
            self._steps[job.size].at(job.context)
        until = time.perf_counter() + seconds
        for i in range(WARM + MOST):
            if i >= WARM + LEAST and time.perf_counter() > until:
                break
            start = time.perf_counter()
            job.plain.run()
            took = (time.perf_counter() - start) * 1e6
            place = self._run(job)
            if i >= WARM:
                job.plain_us.append(took)
                job.runs.append(place)

    def _run(self, job: _Job) -> int:
        """Run with the profiler; returns which run of its session it was."""
        job.profiled.run()
        self._counts[job.graph] += 1
        return self._counts[job.graph] - 1

    def _tell(self) -> None:
        """One input and a few tokens of an answer, as in a real run, for the trace."""
        before = [job for job in self._jobs if job.graph not in STEPS]
        chunk = max((job for job in self._jobs if job.graph == "decoder"), key=lambda job: job.size)
        token = min((job for job in self._jobs if job.graph == "decoder"), key=lambda job: job.size)
        order: list[tuple[_Job, int | None]] = [(job, None) for job in before]
        if not before:
            order += [(chunk, self._context)]
        order += [(token, self._context + i) for i in range(STORY if token.size == 1 else 1)]
        for job, context in order:
            if context is not None:
                self._steps[job.size].at(context)
            self._story.append((job.graph, job.size, context, self._run(job)))


def layers(events: Sequence[Event]) -> list[str]:
    """Which layer each node belongs to: its number, or the name of what stands before or behind the layers. A node
    that onnxruntime made of others may have lost its name, and belongs where the one before it does."""
    found, last = [], OUTSIDE
    for event in events:
        if (match := LAYER.search(event.node)) is not None:
            last = match[1]
        elif "/" in event.node:
            last = event.node.partition("/")[0]
        found.append(last)
    return found


def without_profiler(measured_us: NDArray[np.float64], total_us: float) -> NDArray[np.float64]:
    """The nodes' times [n] without what the profiler adds, so that they add up to `total_us`: the time of a run without
    it.

    It adds about the same to each node, so as much is taken off each, though never more than the cheapest tenth of them
    can bear; what is over then, in proportion: the profiler also drives data out of the caches. Where the times add up
    to less already, the rest was spent between the nodes, and they stay as they are.
    """
    over = measured_us.sum() - total_us
    if over <= 0:
        return measured_us
    each = min(over / len(measured_us), (1 - KEPT) * float(np.percentile(measured_us, 10)))
    left: NDArray[np.float64] = np.maximum(measured_us - each, KEPT * measured_us)
    left *= total_us / left.sum()
    return left


def _ops(manifest: Manifest, nodes: dict[str, Node], job: _Job, runs: Sequence[Run], plain_us: float) -> list[Op]:
    """One entry for each node of a graph at one size, in the order in which they run."""
    times, events = defaultdict(list), runs[0].events
    for event in (event for run in runs for event in run.events):
        times[event.node].append(event.us)
    corrected = without_profiler(np.array([middle(times[event.node]) for event in events]), plain_us)
    windows = {str(i): kv.window for i, kv in enumerate(manifest.kv.layers)}
    ops = []
    for event, layer, us in zip(events, layers(events), corrected.tolist(), strict=True):
        shapes, node = (costs.shapes(event.inputs), costs.shapes(event.outputs)), nodes.get(event.node)
        cost = costs.cost(event.op_type, *shapes, node, rows=job.context or 0, window=windows.get(layer))
        ops.append(
            Op(
                graph=job.graph,
                size=job.size,
                layer=layer,
                op_type=event.op_type,
                node=event.node,
                count=len(times[event.node]),
                us=round(us, 3),
                bytes=cost.bytes,
                flops=cost.flops,
                context=job.context,
                arithmetic=cost.arithmetic,
            )
        )
    return ops


def middle(times: Sequence[float]) -> float:
    """The mean of the middle half: as robust as a median, and finer than the whole microseconds it is made of."""
    ordered = sorted(times)
    cut = len(ordered) // 4
    kept = ordered[cut : len(ordered) - cut]
    return sum(kept) / len(kept)
