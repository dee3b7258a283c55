"""Times of the nodes of a bundle's graphs, with the bytes that each moves and its operations.

onnxruntime's profiler costs several microseconds per node, as much as a small operator. So every run with the profiler
follows one without, and what the profiler adds is subtracted: the times of a graph's nodes add up to the median of the
runs without it.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.errors import InputError
from edge.manifest import LONGER, Manifest
from edge.runtime.costs.record import Op, Placement
from edge.runtime.limits import PREFILL_CHUNK
from edge.runtime.profile import graph_runs, node_costs
from edge.runtime.profile.graph_file import Node, read_graph
from edge.runtime.profile.graph_runs import Event, Run
from edge.runtime.profile.placement import placement_of, with_times
from edge.runtime.profile.subject import source_tokens
from edge.runtime.providers import AUTO, open_provider
from edge.runtime.providers.provider import Provider, Session

CONTEXT = 512  # tokens in the KV cache, where the bundle takes so many
WARM, LEAST, MOST = 2, 5, 40  # runs of each graph and size: not measured, at least, at most
STORY = 6  # output tokens of the run that the trace shows
KEPT = 0.2  # of a node's time, at least, when the same is subtracted from each
STEPS = ("decoder", "prefill")  # graphs that run in steps over the KV cache
LAYER = re.compile(r"(?:^|/)layers\.(\d+)(?:/|$)")
OUTSIDE = "inputs"  # what stands before the first node whose name says where it belongs

Progress = Callable[[str], None]


@dataclass(frozen=True)
class ProfiledStep:
    """One run of a graph, for the trace: a prompt's chunk, a token, or an encoder's or frontend's run."""

    graph: str
    size: int
    context: int | None
    run: Run
    layers: list[str]  # of each of the run's events


@dataclass(frozen=True)
class Measured:
    """Result of `measure`."""

    ops: list[Op]
    placement: list[Placement]  # with the shares of time of each graph's smallest step
    # One input and a few tokens, one after another, profiler included.
    story: list[ProfiledStep] = field(default_factory=list)
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
    """Measure the time in every node of a bundle's graphs: a decoder's steps of `sizes` tokens at `context` tokens, a
    step of its int8 prefill graph, an encoder's and a frontend's run. Every graph is opened twice.

    Args:
        provider: what runs the graphs; default: the best that this machine has.
        context: default: 512, or what the limit has room for.
        limit: maximum tokens in the KV cache, those of the step included; default: the bundle's.
        sizes: tokens of a step; those that do not fit in the context are omitted.
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
        raise InputError(f"Operators are measured at 0 to {most} tokens of context with this bundle, not {context}.")
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
    """One graph at one size: runs of both of its sessions at a context, and what was measured."""

    graph: str
    size: int
    context: int | None
    plain: Callable[[int], object]
    profiled: Callable[[int], object]
    plain_us: list[float] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)  # places among all runs of the graph's profiled session


class _Measuring:
    def __init__(
        self, provider: Provider, bundle: Bundle, prefix: Path, context: int, sizes: Sequence[int], limit: int
    ) -> None:
        self._bundle, self._provider, self._context, manifest = bundle, provider, context, bundle.manifest
        self._sessions = graph_runs.sessions(provider, bundle, prefix)
        self._counts, self._jobs = Counter[str](), list[_Job]()
        self._story: list[tuple[_Job, int | None, int]] = []
        rows, cross = source_tokens(manifest) or 0, None
        for role, pair in self._sessions.items():
            if role not in STEPS:
                inputs = graph_runs.random_inputs(manifest, pair[0], rows)
                run, watched = (partial(_run, session, inputs) for session in pair)
                self._jobs.append(_Job(role, rows, None, run, watched))
                if role == "encoder":
                    cross = graph_runs.encoded(provider, manifest, pair[0], inputs, rows)
        steps = [("decoder", size) for size in sizes]
        if "prefill" in self._sessions:  # reads prompts, in longer steps where they fit
            steps += [("prefill", min(LONGER * max(sizes), limit))]
        capacity = min(context + max(STORY + 1, *(size for _, size in steps)), limit)
        cache = graph_runs.random_cache(provider, manifest, capacity, cross)
        for role, size in steps:
            plain, profiled = (graph_runs.decoder_step(manifest, cache, each, size) for each in self._sessions[role])
            self._jobs.append(_Job(role, size, min(context, capacity - size), plain, profiled))

    def measure(self, seconds: float, progress: Progress) -> Measured:
        for job in self._jobs:
            progress(f"operators of the {job.graph}, {job.size} at a time")
            self._repeat(job, seconds / len(self._jobs))
        self._run_story()
        runs = {role: graph_runs.finish(profiled) for role, (_, profiled) in self._sessions.items()}
        ops, slowed = list[Op](), list[tuple[float, str]]()
        for job in self._jobs:
            path = self._bundle.path(self._bundle.manifest.graph(job.graph).path)
            seen = [runs[job.graph][i] for i in job.runs]
            plain, profiled = float(np.median(job.plain_us)), float(np.median([run.us for run in seen]))
            ops += _ops(self._bundle.manifest, read_graph(path), job, seen, plain)
            times = f"{job.size} at a time, from {plain / 1e3:.3g} to {profiled / 1e3:.3g} ms"
            slowed.append((profiled / plain, f"onnxruntime's profiler slows the {job.graph} down, {times}"))
        manifest, opened = self._bundle.manifest, {}
        for role, (session, _) in self._sessions.items():
            opened[role] = session, self._bundle.path(manifest.graph(role).path)
        note = f"{max(slowed)[1]}; what it adds to each node is subtracted from the times of operators."
        story = []
        for job, context, place in self._story:
            run = runs[job.graph][place]
            story.append(ProfiledStep(job.graph, job.size, context, run, layers(run.events)))
        return Measured(ops, with_times(placement_of(self._provider, opened), ops), story, [note])

    def _repeat(self, job: _Job, seconds: float) -> None:
        until, context = time.perf_counter() + seconds, job.context or 0
        for i in range(WARM + MOST):
            if i >= WARM + LEAST and time.perf_counter() > until:
                break
            start = time.perf_counter()
            job.plain(context)
            took = (time.perf_counter() - start) * 1e6
            place = self._run_profiled(job, context)
            if i >= WARM:
                job.plain_us.append(took)
                job.runs.append(place)

    def _run_profiled(self, job: _Job, context: int) -> int:
        """Run with the profiler; returns which run of its session it was."""
        job.profiled(context)
        self._counts[job.graph] += 1
        return self._counts[job.graph] - 1

    def _run_story(self) -> None:
        """One input and a few tokens of an answer, as in a real run, for the trace."""
        order: list[tuple[_Job, int | None]] = [(job, None) for job in self._jobs if job.graph not in STEPS]
        decoder = sorted((job for job in self._jobs if job.graph == "decoder"), key=lambda job: job.size)
        if not order:
            order = [(decoder[-1], self._context)]
        order += [(decoder[0], self._context + i) for i in range(STORY if decoder[0].size == 1 else 1)]
        self._story = [(job, context, self._run_profiled(job, context or 0)) for job, context in order]


def _run(session: Session, inputs: graph_runs.Inputs, context: int) -> None:
    session.run(inputs)


def layers(events: Sequence[Event]) -> list[str]:
    """Return the layer of each node: its number, or the name of the part before or after the layers. A node without a
    name, which onnxruntime fused from others, belongs where the one before it does."""
    found, last = [], OUTSIDE
    for event in events:
        if (match := LAYER.search(event.node)) is not None:
            last = match[1]
        elif "/" in event.node:
            last = event.node.partition("/")[0]
        found.append(last)
    return found


def without_profiler(measured_us: NDArray[np.float64], total_us: float) -> NDArray[np.float64]:
    """Subtract from the nodes' times [n] what the profiler adds, so that they add up to `total_us`, the time of a run
    without it.

    It adds about the same to each node, so the same is subtracted from each, as far as the cheapest tenth of them
    allows; the rest in proportion, because the profiler also evicts data from the caches. Times that add up to less
    already stay as they are: the rest was spent between the nodes.
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
    times, events = defaultdict[str, list[float]](list), runs[0].events
    for event in (event for run in runs for event in run.events):
        times[event.node].append(event.us)
    corrected = without_profiler(np.array([middle(times[event.node]) for event in events]), plain_us)
    windows = {str(i): kv.window for i, kv in enumerate(manifest.kv.layers)}
    ops = []
    for event, layer, us in zip(events, layers(events), corrected.tolist(), strict=True):
        shapes, node = (node_costs.shapes(event.inputs), node_costs.shapes(event.outputs)), nodes.get(event.node)
        cost = node_costs.cost(event.op_type, *shapes, node, rows=job.context or 0, window=windows.get(layer))
        names, count = (layer, event.op_type, event.node), len(times[event.node])
        taken = round(us, 3), cost.bytes, cost.flops
        ops.append(Op(job.graph, job.size, *names, count, *taken, job.context, cost.arithmetic, event.provider))
    return ops


def middle(times: Sequence[float]) -> float:
    """The mean of the middle half: as robust as a median, and finer than the whole microseconds it is made of."""
    cut = len(times) // 4
    return float(np.sort(times)[cut : len(times) - cut].mean())
