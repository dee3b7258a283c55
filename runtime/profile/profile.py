"""Profiling a bundle on this device within a time limit: every phase gets a share of the time, and what it does not
need goes to those that follow."""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from edge import __version__
from edge.bundle import MANIFEST, Bundle, open_bundle, sha256_of
from edge.errors import InputError
from edge.manifest import FLOAT32, INT8, KV8_STEP, Manifest
from edge.runtime.costs import machine
from edge.runtime.costs.measured import best_provider
from edge.runtime.costs.record import (
    FORMAT,
    FORMAT_VERSION,
    BundleInfo,
    CurvePoint,
    Decode,
    Load,
    Memory,
    Placement,
    Profile,
    Ttft,
    Usage,
)
from edge.runtime.engine.variant import kv_dtypes
from edge.runtime.limits import PREFILL_CHUNK
from edge.runtime.load import open_engine
from edge.runtime.memory.footprint import Demand, MemoryModel
from edge.runtime.profile import fresh, ops
from edge.runtime.profile.drift import DriftMeter, sustain
from edge.runtime.profile.jobs import FirstTokenJob, StepJob, TokenJob, prefill_usage
from edge.runtime.profile.measure import Group, Job, Series, take_turns
from edge.runtime.profile.placement import of_engine
from edge.runtime.profile.subject import Subject, input_kind, source_tokens
from edge.runtime.providers import AUTO, BEST, check_provider, find_support, open_provider
from edge.runtime.providers.instructions import lacking
from edge.runtime.providers.provider import SIMULATES
from edge.targets import CUDA, read_target, target_for

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
OTHER = "curve over the other KV cache"
SHARES = {"load": 0.12, "memory": 0.06, "answers": 0.32, "curve": 0.27, "sustained": 0.15, OTHER: 0.08}
DENSE, DENSE_BELOW = (8, 32, 128, 512), 1024  # lengths that are measured, where the context is short
SPARSE = (16, 128, 512, 2000, 8000, 32000, 128000)
PLACEMENT_SHARE = 0.05  # of the time, on top of it, where graphs are on two providers
LONGEST = 1 / 8  # maximum share of the time for one input
FEW = 64  # tokens that are run to fill the second engine's cache
LEAST_COUNT = 3  # measurements of each point of the other curve, with which `edge run` chooses
LEAST_ROUNDS = 4  # minimum of the cost curve's rounds, warm-up included
LEAST_CONTEXT = 16
DECODER_START = 4  # maximum tokens that the decoder of an encoder-decoder begins with
LEAST_SECONDS = 1.0
BUSY = 0.05  # share of the machine for other processes, above which it is noted
ROLES = {"prompt": ["decoder"], "source": ["encoder", "decoder"], "audio": ["frontend", "encoder", "decoder"]}

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class ProfileOptions:
    """Options of a profile.

    Args:
        seconds: how long it may take in all; where a single round takes longer, it takes that.
        threads: threads to compute with; default: one per core, up to 8.
        context: maximum tokens in the KV cache; default: the bundle's, if that takes no more than half of the memory.
        provider: the execution provider that runs the graphs.
        strict: whether it must run all of each; see `edge.runtime.providers.open_provider`.

    Raises:
        InputError: a value out of its range, or an unknown provider.
    """

    seconds: float = 60.0
    threads: int | None = None
    context: int | None = None
    provider: str = AUTO
    strict: bool | None = None

    def __post_init__(self) -> None:
        if not LEAST_SECONDS <= self.seconds < float("inf"):
            raise InputError(f"Measuring needs {LEAST_SECONDS:g} second or more, not {self.seconds:g}.")
        if self.context is not None and self.context < LEAST_CONTEXT:
            raise InputError(f"A profile needs a context of {LEAST_CONTEXT} tokens or more, not {self.context}.")
        check_provider(self.provider)


def profile(
    path: str | Path, options: ProfileOptions | None = None, *, progress: Progress = lambda done, total, text: None
) -> Profile:
    """Measure a bundle of any kind. The first engine of a process sets the threads of all others.

    Raises:
        BundleError: the bundle is missing, damaged, or lacks a graph.
        InputError: an option that the bundle cannot follow.
    """
    bundle = open_bundle(path)
    bundle.check_files_once()
    for role in ROLES[input_kind(bundle.manifest)]:
        bundle.manifest.graph(role)
    chosen = settled(bundle, options or ProfileOptions())
    device = find_support(chosen.provider).device
    if device is not None and device.use == SIMULATES:
        raise InputError(
            f"The provider {chosen.provider} simulates {device.name} on this machine, and what a simulator takes says "
            "nothing of the device; measure it on the device."
        )
    return _Run(bundle, chosen, progress).profile()


def settled(bundle: Bundle, options: ProfileOptions) -> ProfileOptions:
    """The options with the provider that ``auto`` stands for with this bundle."""
    if options.provider != AUTO:
        return options
    return dataclasses.replace(options, provider=best_provider(bundle, options.threads, options.strict))


class _Run:
    """One run of the profiler. The order matters: files are dropped from the page cache before an engine maps them."""

    def __init__(self, bundle: Bundle, options: ProfileOptions, progress: Progress) -> None:
        self._bundle, self._options, self._progress = bundle, options, progress
        self._start = time.monotonic()
        target = target_for(bundle, options.provider)  # whose graphs have one KV cache and one capacity
        kinds = [AUTO] if target is not None else kv_dtypes(bundle, provider=options.provider)
        self._kv = kinds[0]  # what answers run over
        self._other = (kinds[1:] or [FLOAT32])[0] if INT8 in kinds else None
        self._waiting = {name: share for name, share in SHARES.items() if self._other or name != OTHER}
        self._notes = [sentence] if (sentence := lacking()) else []
        context = options.context
        if target is not None and target != CUDA:
            limit = read_target(bundle, target).context
            context = min(context or limit, limit)
        self._capacity = _capacity(bundle.manifest, context)
        self._contexts = grid(self._capacity - min(max(SIZES), self._capacity // 2))
        how = options
        self._settings = fresh.Settings(str(bundle.root), self._capacity, how.threads, how.provider, how.strict)
        self._energy = machine.Energy()

    def profile(self) -> Profile:
        neighbours = machine.Neighbours()
        load, memory = self._load(), self._memory()
        self._say("opening")
        self._subject = self._open(self._kv)
        self._subject.fill()
        device = machine.describe(self._subject.engine.provider.name, self._subject.engine.threads)
        placed = of_engine(self._subject.engine)
        self._drift = DriftMeter(lambda: self._subject.step(1, self._contexts[0]))
        ttft, decode, prefill = self._answers()
        context = self._contexts[min(1, len(self._contexts) - 1)]
        tell = self._between("long answers in a row")
        sustained, decoding = sustain(self._subject, context, self._until("sustained"), self._energy, tell)
        curve = self._curve("curve", SIZES)  # last, next to the other one, because both are compared
        noise = self._drift.noise(None)  # of this engine's steps alone
        other = self._other_curve() if self._other else []
        foreign = neighbours.share()
        if foreign is not None and foreign > BUSY:
            self._notes.append(f"Other processes took {foreign:.0%} of the machine; repeat when it is idle.")
        return Profile(
            format=FORMAT,
            format_version=FORMAT_VERSION,
            producer=f"edge {__version__}",
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - self._start, 3),
            device=device,
            bundle=bundle_info(self._bundle),
            context=self._capacity,
            ttft=ttft,
            decode=decode,
            curve=other if self._kv == INT8 else curve,
            curve_int8=curve if self._kv == INT8 else other,
            source_tokens=source_tokens(self._bundle.manifest),
            sustained=sustained,
            load=load,
            memory=memory,
            usage=[prefill, decoding],
            placement=self._timed(placed),
            noise=dataclasses.replace(noise, foreign_cpu=foreign),
            notes=self._notes,
        )

    def _open(self, kv: str) -> Subject:
        how = self._options
        engine = open_engine(
            self._bundle,
            context=self._capacity,
            threads=how.threads,
            kv=kv,
            provider=how.provider,
            strict=how.strict,
        )
        return Subject(engine, self._capacity)

    def _timed(self, placement: list[Placement]) -> list[Placement]:
        """The same with shares of time, for which graphs that two providers share are watched in sessions of their
        own."""
        if all(row.time_share is not None for row in placement):
            return placement
        del self._subject
        gc.collect()
        self._say("time by provider")
        how = self._options
        provider = open_provider(how.provider, how.threads, self._bundle.manifest, how.strict)
        seconds = how.seconds * PLACEMENT_SHARE
        return ops.measure(self._bundle, provider=provider, limit=self._capacity, sizes=(1,), seconds=seconds).placement

    def _say(self, what: str) -> None:
        done = time.monotonic() - self._start
        self._progress(round(1000 * min(done / self._options.seconds, 1)), 1000, what)

    def _until(self, phase: str) -> float:
        """When a phase must end: the time that is left is shared between it and those that follow."""
        now = time.monotonic()
        left = max(0.0, self._start + self._options.seconds - now)
        total = sum(self._waiting.values())
        return now + left * self._waiting.pop(phase) / total

    def _load(self) -> Load | None:
        until = self._until("load")
        files = [path for path in self._bundle.root.rglob("*") if path.is_file()]
        warm, cold, droppable = Series(), Series(), True
        self._say("loading in fresh processes")
        try:
            fresh.load_ms(self._settings)  # reads the files into the page cache
            began = time.monotonic()
            while not (warm.sure and (cold.sure or not droppable)):
                warm.times.append(fresh.load_ms(self._settings))
                droppable = droppable and machine.drop_from_page_cache(files)
                if droppable:
                    cold.times.append(fresh.load_ms(self._settings))
                self._say("loading in fresh processes")
                now = time.monotonic()
                if now + (now - began) / len(warm.times) > until:
                    break
        except (fresh.ChildFailed, OSError, ValueError) as e:
            self._notes.append(f"Loading could not be measured in a fresh process: {e}")
            return None
        if not droppable:
            self._notes.append("The system does not drop the bundle's files from its page cache: no cold load time.")
        return Load(warm.stats, cold.stats if cold.times else None)

    def _memory(self) -> Memory | None:
        self._say("measuring the memory of a fresh process")
        prompt, tokens = min(512, self._capacity // 2), min(64, self._capacity // 4)
        encoder = self._bundle.manifest.encoder
        capacity = prompt + tokens + 1
        if encoder is not None:
            prompt = min(prompt, encoder.max_length) if encoder.input == "text" else encoder.max_length
            capacity = self._capacity
        settings = dataclasses.replace(self._settings, context=capacity)
        del self._waiting["memory"]  # it takes what one answer takes
        try:
            found = fresh.memory(settings, prompt, tokens)
            if self._options.provider != BEST:  # the memory model is the CPU's
                return found
            predicted = MemoryModel(self._bundle).footprint(_demand(self._bundle.manifest, prompt, tokens))
            return dataclasses.replace(found, predicted=predicted.kinds, predicted_bytes=predicted.peak)
        except (fresh.ChildFailed, OSError, ValueError) as e:
            self._notes.append(f"Memory could not be measured in a fresh process: {e}")
            return None

    def _answers(self) -> tuple[list[Ttft], list[Decode], Usage]:
        until, what = self._until("answers"), "time to first token, time per token"
        self._say(what)
        firsts = self._inputs(until)
        tokens = [TokenJob(self._subject, context) for context in self._contexts]
        for job in tokens:
            job.run(keep=False)
        both: list[Job] = [*firsts, *tokens]
        take_turns([Group([job]) for job in both], until, between=self._between(what), warm=True)
        used = prefill_usage(firsts, self._energy)
        return [job.result() for job in firsts], [job.result() for job in tokens], used

    def _inputs(self, until: float) -> list[FirstTokenJob]:
        """Inputs of as many tokens as there is time for; each is run once, to warm up."""
        encoder, lengths = self._bundle.manifest.encoder, self._contexts
        if encoder is not None:
            longest = encoder.max_length
            short = [longest // 6, longest // 3] if encoder.any_length else []  # 5 and 10 s of 30
            lengths = grid(longest) if encoder.input == "text" else [longest, *short]
        allowed, jobs, took = (until - time.monotonic()) * LONGEST, list[FirstTokenJob](), 0.0
        for length in lengths:
            # Attention is quadratic in the length and all else linear: a guess is enough to keep within the time.
            expected = took * (length / jobs[-1].tokens) ** 1.3 if jobs else 0.0
            if jobs and expected > allowed:
                about = f"{expected:.0f}" if expected >= 10 else f"{max(expected, 0.1):.1f}"
                self._notes.append(f"An input of {length} tokens takes about {about} s; give more --seconds for it.")
                break
            start = time.monotonic()
            jobs.append(FirstTokenJob(self._subject, length, self._energy))
            jobs[-1].run(keep=False)
            took = time.monotonic() - start
        return sorted(jobs, key=lambda job: job.tokens)

    def _other_curve(self) -> list[CurvePoint]:
        """The cost curve over the other type of KV cache, up to its largest step; empty where there was no time. Its
        engine replaces the first one: two would hold the weights twice."""
        assert self._other is not None
        del self._subject
        gc.collect()  # an engine is part of reference cycles
        self._say(f"cost {OTHER}")
        self._subject = self._open(self._other)
        self._subject.fill(FEW)
        whole = self._subject.engine.independent  # else larger steps attend in another way, and drafts take none
        points = self._curve(OTHER, SIZES if whole else tuple(size for size in SIZES if size <= KV8_STEP))
        if all(point.count >= LEAST_COUNT for point in points):
            return points
        self._notes.append(f"There was no time for the cost {OTHER}; measure it with more --seconds.")
        return []

    def _curve(self, phase: str, sizes: tuple[int, ...]) -> list[CurvePoint]:
        until, contexts, what = self._until(phase), list(self._contexts), f"cost {phase}"
        self._say(what)
        allowed = until - time.monotonic()
        sizes_at = {context: [size for size in sizes if context + size <= self._capacity] for context in contexts}
        # A round over all sizes takes about three times what the largest of them does.
        round_s = {context: 3e-3 * self._subject.step(sizes_at[context][-1], context) for context in contexts}
        while len(contexts) > 2 and LEAST_ROUNDS * sum(round_s[context] for context in contexts) > allowed:
            contexts.remove(contexts[len(contexts) // 2])
        if omitted := ", ".join(str(context) for context in self._contexts if context not in contexts):
            self._notes.append(f"The {what} omits the contexts {omitted}; measure them with more --seconds.")
        jobs = {c: [StepJob(self._subject, size, c) for size in sizes_at[c]] for c in contexts}
        # A step of one token first: it brings weights and rows into the caches, as in the middle of an answer.
        groups = [Group(jobs[c], partial(self._subject.step, 1, c)) for c in contexts]
        if not take_turns(groups, until, between=self._between(what)):
            self._notes.append(f"Points of the {what} were measured once, not warmed up; give more --seconds.")
        return [job.result() for context in contexts for job in jobs[context]]

    def _between(self, what: str) -> Callable[[], None]:
        def tell() -> None:
            self._drift.measure_drift()
            self._say(what)

        return tell


def grid(last: int) -> list[int]:
    """Lengths up to and including `last`, each about four times the one before."""
    steps = DENSE if last < DENSE_BELOW else SPARSE
    return [*(n for n in steps if n <= last / 1.3), last]


def _capacity(manifest: Manifest, asked: int | None) -> int:
    """Tokens of the KV cache: as asked for, or what half of the memory holds, up to the bundle's context."""
    if asked is not None:
        if asked > manifest.context:
            raise InputError(f"The context must be up to {manifest.context} tokens for this bundle, not {asked}.")
        return asked
    available = machine.available_bytes()
    fits = manifest.context if available is None else available // 2 // max(1, manifest.kv.bytes_per_token)
    return max(LEAST_CONTEXT, min(manifest.context, fits))


def _demand(manifest: Manifest, prompt: int, tokens: int) -> Demand:
    """The demand of a process that reads an input of `prompt` tokens and generates `tokens`."""
    if manifest.encoder is None:
        return Demand(context=prompt + tokens + 1, chunk=min(prompt, PREFILL_CHUNK))
    source = prompt if manifest.encoder.input == "text" else 0
    return Demand(context=DECODER_START + tokens + 1, chunk=DECODER_START, source=source)


def bundle_info(bundle: Bundle) -> BundleInfo:
    """Describe the bundle that is measured."""
    manifest = bundle.manifest
    return BundleInfo(
        name=manifest.name,
        sha256=sha256_of(bundle.path(MANIFEST)),
        family=manifest.family,
        kind=manifest.kind,
        input=input_kind(manifest),
        weights=manifest.weights,
        context=manifest.context,
        parameters=sum(group.parameters for group in manifest.groups),
        bytes=sum(file.size for file in manifest.files),
    )
