"""Running a bundle's graphs one by one on random inputs, with and without onnxruntime's profiler."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.manifest import Manifest
from edge.runtime.engine.binding import LAST_ROW, Step, WholeBinding
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.encoder import Cross
from edge.runtime.engine.states import states_of
from edge.runtime.providers.provider import Provider, Session

ROLES = ("frontend", "encoder", "decoder", "prefill")  # in the order in which they are shown
FRAMES = 2  # of features for each row that an encoder of sound makes
SUFFIX = "_kernel_time"  # which the profiler adds to a node's name

Inputs = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Event:
    """One run of a node, as the profiler recorded it."""

    node: str
    op_type: str
    start_us: float  # on the clock that all sessions share
    us: float
    inputs: Any  # [{"float": [1, 128, 576]}, ...]
    outputs: Any
    threads: Any  # what the pool's threads did
    provider: str | None = None  # the execution provider that ran it


@dataclass(frozen=True)
class Run:
    """One run of a graph."""

    start_us: float  # on the clock that all sessions share
    us: float
    events: list[Event] = field(default_factory=list)


def sessions(provider: Provider, bundle: Bundle, prefix: Path) -> dict[str, tuple[Session, Session]]:
    """By role, a session without the profiler and one with it."""
    have = {graph.role for graph in bundle.manifest.graphs}
    if bundle.manifest.prefill is not None and not bundle.manifest.prefill.known:
        have.remove("prefill")
    found = {}
    for role in (role for role in ROLES if role in have):
        profiled = provider.open(bundle, role, profile=prefix.with_name(f"{prefix.name}-{role}"))
        found[role] = provider.open(bundle, role), profiled
    return found


def finish(session: Session) -> list[Run]:
    """End a session's profile, read it, and delete its file.

    Raises:
        OSError: the file could not be written or read.
    """
    origin = session.inference.get_profiling_start_time_ns() / 1e3
    path = Path(session.inference.end_profiling())
    try:
        listed = json.loads(path.read_bytes())
    except ValueError as e:  # the disk was full
        raise OSError(f"the profile {path} is not whole ({e})") from None
    finally:
        path.unlink(missing_ok=True)
    runs, events = list[Run](), list[Event]()
    for each in listed:
        if each.get("cat") == "Node" and each["name"].endswith(SUFFIX):
            args, start = each["args"], origin + each["ts"]
            names = "input_type_shape", "output_type_shape", "thread_scheduling_stats", "provider"
            seen = map(args.get, names)
            events.append(Event(each["name"].removesuffix(SUFFIX), args["op_name"], start, each["dur"], *seen))
        elif each.get("name") == "model_run":
            runs.append(Run(origin + each["ts"], each["dur"], events))
            events = []
    return runs


def random_inputs(manifest: Manifest, session: Session, length: int) -> Inputs:
    """Inputs of an encoder or a frontend, by name: `length` tokens, or a window of audio."""
    rng = np.random.default_rng(2)
    (value,) = session.inference.get_inputs()
    if value.name == "input_ids":
        return {value.name: rng.integers(0, manifest.dims.vocab_size, (1, length), np.int64)}
    if value.name == "pcm":
        assert manifest.speech is not None
        return {value.name: rng.normal(0, 0.1, (1, manifest.speech.window_samples)).astype(np.float32)}
    bins = value.shape[1]
    return {value.name: rng.standard_normal((1, bins, FRAMES * length), np.float32)}


def encoded(provider: Provider, manifest: Manifest, encoder: Session, inputs: Inputs, length: int) -> Cross:
    """Run the encoder on an input of `length` rows, and return its output for the decoder."""
    assert manifest.cross is not None
    names = (value.name for value in encoder.inference.get_outputs())
    made = dict(zip(names, map(provider.adopt, encoder.run(inputs)), strict=True))
    layers = range(len(manifest.cross.layers))
    pairs = [(made[f"cross.{i}.key"], made[f"cross.{i}.value"]) for i in layers]
    return Cross(pairs, length, pairs)


def random_cache(provider: Provider, manifest: Manifest, capacity: int, cross: Cross | None) -> KVCache:
    """Make a cache whose rows are all written: unwritten ones would all be the same page of zeros."""
    cache = KVCache(provider, manifest.kv, capacity, cross, states=states_of(manifest, provider))
    rng = np.random.default_rng(0)
    for pair in cache.buffers:
        for buffer in pair:
            for head in buffer[0]:
                head[:] = rng.standard_normal(head.shape, np.float32)
    return cache


def decoder_step(manifest: Manifest, cache: KVCache, session: Session, size: int) -> Callable[[int], None]:
    """Return a function that runs a step of `size` tokens at a context, with logits of the last token."""
    vocab = manifest.dims.vocab_size
    tokens = np.random.default_rng(size).integers(0, vocab, size, np.int64)
    logits = cache.provider.allocate((1, 1, vocab), np.float32)
    step = Step(WholeBinding(session, cache, size), cache, size, 1, {"logits": logits})

    def run(context: int) -> None:
        cache.length = context
        step.fill(tokens, context, LAST_ROW, None)
        step.run(cache, None)

    return run
