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
import onnxruntime as ort
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.errors import InputError
from edge.manifest import Manifest
from edge.runtime.generate import LONGER
from edge.runtime.model import PREFILL_CHUNK
from edge.runtime.profile import costs, graph_runs
from edge.runtime.profile.graph_file import Node, read_graph
from edge.runtime.profile.graph_runs import Event, Run
from edge.runtime.profile.record import Op
from edge.runtime.providers import cpu

CONTEXT = 512  # tokens in the KV cache, where the bundle takes so many
SOURCE = 64  # tokens of a text encoder's input: two or three sentences
WARM, LEAST, MOST = 2, 5, 40  # runs of each graph and size: not measured, at least, at most
STORY = 6  # output tokens of the run that the trace shows
KEPT = 0.2  # of a node's time, at least, when as much is taken off each
STEPS = ("decoder", "wide")  # graphs that are run in steps over the KV cache
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
    threads: int | None = None,
    context: int | None = None,
    limit: int | None = None,
    sizes: Sequence[int] = (1, PREFILL_CHUNK),
    seconds: float = 10.0,
    progress: Progress = lambda what: None,
) -> Measured:
    """Time in every node of a bundle's graphs: a decoder's steps of `sizes` tokens behind `context` tokens, its wide
    form's step of a prompt, an encoder's and a frontend's run.

    It opens every graph twice, and so takes about twice the memory of a model that runs.

    Args:
        threads: of the pool that all sessions of this process share; the first engine or session decides.
        context: default: 512, or what the limit has room for.
        limit: most tokens in the KV cache, those of the step included; default: as many as the bundle takes.
        sizes: tokens of a step; those that the bundle's context cannot hold are left out.
        seconds: about how long it may take. Every graph is run a few times in any case.

    Raises:
        InputError: a context that the bundle cannot take, or no place for the profiler's temporary files.
        BundleError: a graph cannot be loaded.
    """
    manifest = bundle.manifest
    cpu.share_thread_pool(threads)
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
            return _Measuring(bundle, Path(folder) / "ops", context, fitting, limit).measure(seconds, progress)
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
    plain: Callable[[], None]
    profiled: Callable[[], None]
    plain_us: list[float] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)  # places among all runs of the graph's profiled session


class _Measuring:
    def __init__(self, bundle: Bundle, prefix: Path, context: int, sizes: Sequence[int], limit: int) -> None:
        self._bundle, self._context = bundle, context
        manifest = bundle.manifest
        self._rows = source_rows(manifest)
        self._sessions = graph_runs.sessions(bundle, prefix)
        self._counts = dict.fromkeys(self._sessions, 0)  # runs of each profiled session
        cross = graph_runs.made_up_cross(manifest, self._rows)
        steps = [("decoder", size) for size in sizes]
        if "wide" in self._sessions:  # reads prompts, in longer steps where they fit
            steps += [("wide", min(LONGER * max(sizes), limit))]
        capacity = min(context + max(STORY + 1, *(size for _, size in steps)), limit)
        cache = graph_runs.made_up_cache(manifest, capacity, cross)
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
            found = _Graph(self._bundle.manifest, read_graph(path), seen[0].events, job.context or 0)
            plain, profiled = float(np.median(job.plain_us)), float(np.median([run.us for run in seen]))
            ops += found.ops(job, [run.events for run in seen], plain)
            slowed.append((profiled / plain, job, plain, profiled))
        _, job, plain, profiled = max(slowed, key=lambda each: each[0])
        note = (
            f"onnxruntime's profiler slows the {job.graph} down, {job.size} at a time, from {plain / 1e3:.3g} to "
            f"{profiled / 1e3:.3g} ms; what it adds to each node is taken off the times of operators."
        )
        return Measured(ops, [self._step(runs, *each) for each in self._story], [note])

    def _job(self, role: str, size: int, step: graph_runs.DecoderStep | None) -> _Job:
        plain, profiled = self._sessions[role]
        inputs = step.inputs if step else graph_runs.encoder_inputs(self._bundle.manifest, plain, size)
        outputs = step.outputs if step else {}
        return _Job(
            role,
            size,
            min(self._context, step.room) if step else None,
            _runner(plain, inputs, outputs),
            _runner(profiled, inputs, outputs),
        )

    def _repeat(self, job: _Job, seconds: float) -> None:
        if job.context is not None:
            self._steps[job.size].at(job.context)
        until = time.perf_counter() + seconds
        for i in range(WARM + MOST):
            if i >= WARM + LEAST and time.perf_counter() > until:
                break
            start = time.perf_counter()
            job.plain()
            took = (time.perf_counter() - start) * 1e6
            place = self._run(job)
            if i >= WARM:
                job.plain_us.append(took)
                job.runs.append(place)

    def _run(self, job: _Job) -> int:
        """Run with the profiler; returns which run of its session it was."""
        job.profiled()
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

    def _step(self, runs: dict[str, list[Run]], graph: str, size: int, context: int | None, place: int) -> Step:
        run = runs[graph][place]
        return Step(graph, size, context, run, layers(run.events))


def source_rows(manifest: Manifest) -> int:
    """Rows of an encoder's input whose operators are measured; 0 where there is no encoder."""
    encoder = manifest.encoder
    if encoder is None:
        return 0
    return encoder.max_length if encoder.input == "audio" else min(SOURCE, encoder.max_length)


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


@dataclass(frozen=True)
class _Graph:
    """What is the same in all runs of a graph at one size."""

    manifest: Manifest
    nodes: dict[str, Node]
    events: list[Event]  # of one run
    rows: int  # in the KV cache

    def ops(self, job: _Job, runs: list[list[Event]], plain_us: float) -> list[Op]:
        """One entry for each node, in the order in which they run."""
        times = defaultdict(list)
        for run in runs:
            for event in run:
                times[event.node].append(event.us)
        corrected = without_profiler(np.array([middle(times[event.node]) for event in self.events]), plain_us)
        ops = []
        for event, layer, us in zip(self.events, layers(self.events), corrected.tolist(), strict=True):
            cost = self._cost(event, layer)
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

    def _cost(self, event: Event, layer: str) -> costs.Cost:
        window = self.manifest.kv.layers[int(layer)].window if self._is_decoder_layer(event, layer) else None
        shapes = costs.shapes(event.inputs), costs.shapes(event.outputs)
        return costs.cost(event.op_type, *shapes, self.nodes.get(event.node), rows=self.rows, window=window)

    def _is_decoder_layer(self, event: Event, layer: str) -> bool:
        in_cache = event.op_type == "GroupQueryAttention" and layer.isdigit()
        return in_cache and int(layer) < len(self.manifest.kv.layers)


def middle(times: Sequence[float]) -> float:
    """The mean of the middle half: as robust as a median, and finer than the whole microseconds it is made of."""
    ordered = sorted(times)
    cut = len(ordered) // 4
    kept = ordered[cut : len(ordered) - cut]
    return sum(kept) / len(kept)


def _runner(session: ort.InferenceSession, inputs: graph_runs.Arrays, outputs: graph_runs.Arrays) -> Callable[[], None]:
    binding = graph_runs.bind(session, inputs, outputs)
    held = (inputs, outputs)  # the binding reads them and does not keep them alive

    def run() -> None:
        assert held
        session.run_with_iobinding(binding)

    return run
