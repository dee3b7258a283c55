"""Running a bundle's graphs one by one with made-up inputs, plainly or with onnxruntime's profiler writing along."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.manifest import Manifest
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.encoder import Cross
from edge.runtime.providers.base import Binding, Buffer, Provider, Session

ROLES = ("frontend", "encoder", "decoder", "prefill")  # in the order in which they are shown
SUFFIX = "_kernel_time"  # which the profiler puts behind a node's name

Buffers = dict[str, Buffer]


@dataclass(frozen=True)
class Event:
    """One run of a node, as the profiler saw it."""

    node: str
    op_type: str
    start_us: float  # on the clock that all sessions share
    us: float
    inputs: Any  # [{"float": [1, 128, 576]}, ...]
    outputs: Any
    threads: Any  # what the pool's threads did


@dataclass(frozen=True)
class Run:
    """One run of a graph."""

    start_us: float  # on the clock that all sessions share
    us: float
    events: list[Event] = field(default_factory=list)


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
            events.append(_event(each, origin))
        elif each.get("name") == "model_run":
            runs.append(Run(origin + each["ts"], each["dur"], events))
            events = []
    return runs


def _event(raw: dict[str, Any], origin: float) -> Event:
    args = raw["args"]
    return Event(
        node=raw["name"].removesuffix(SUFFIX),
        op_type=args["op_name"],
        start_us=origin + raw["ts"],
        us=raw["dur"],
        inputs=args.get("input_type_shape"),
        outputs=args.get("output_type_shape"),
        threads=args.get("thread_scheduling_stats"),
    )


def bind(session: Session, inputs: Buffers, outputs: Buffers) -> Binding:
    """The session's inputs and outputs bound to these buffers, which the caller keeps. An output that is not among them
    is allocated by each run."""
    binding = session.bind()
    for name in session.inputs:
        binding.input(name, inputs[name])
    for name in session.outputs:
        if name in outputs:
            binding.output(name, outputs[name])
        else:
            binding.own_output(name)
    return binding


class DecoderStep:
    """Inputs of a step of `size` tokens, with logits of the last one, on a cache that is full of made-up rows."""

    def __init__(self, manifest: Manifest, cache: KVCache, size: int) -> None:
        rng, provider = np.random.default_rng(size), cache.provider
        self.size, self._cache = size, cache
        positions, last = provider.allocate((1, size), np.int64), provider.allocate((1,), np.int32)
        total = provider.allocate((), np.int32)
        self._positions, self._last, self._total = positions.array, last.array, total.array
        self.inputs: Buffers = {
            "input_ids": provider.adopt(rng.integers(0, manifest.dims.vocab_size, (1, size), np.int64)),
            "position_ids": positions,
            "seqlens_k": last,
            "total_sequence_length": total,
            "logit_rows": provider.adopt(np.array([size - 1], np.int64)),
            "attention_bias": provider.allocate((1, 1, size, cache.capacity), np.float32),
            "key_positions": provider.adopt(cache.positions),
        }
        self.outputs: Buffers = {"logits": provider.allocate((1, 1, manifest.dims.vocab_size), np.float32)}
        for i, (key, value) in enumerate(cache.memory):
            self.inputs[f"past.{i}.key"] = self.outputs[f"present.{i}.key"] = key
            self.inputs[f"past.{i}.value"] = self.outputs[f"present.{i}.value"] = value
        if cache.cross is not None:
            self.inputs |= cache.cross.named

    @property
    def room(self) -> int:
        """Tokens that can stand before it."""
        return self._cache.capacity - self.size

    def at(self, context: int) -> None:
        """Let the next run follow `context` tokens."""
        self._positions[0] = np.arange(context, context + self.size)
        self._total[...] = context + self.size
        self._last[0] = context + self.size - 1


def made_up_cache(provider: Provider, manifest: Manifest, capacity: int, cross: Cross | None) -> KVCache:
    """A cache whose rows are all written: unwritten ones would all be one and the same page of zeros."""
    cache = KVCache(provider, manifest.kv, capacity, cross)
    rng = np.random.default_rng(0)
    for pair in cache.buffers:
        for buffer in pair:
            for head in buffer[0]:
                head[:] = rng.standard_normal(head.shape, np.float32)
    return cache


def made_up_cross(provider: Provider, manifest: Manifest, length: int) -> Cross | None:
    """What an encoder would make of an input of `length` rows; None where there is no encoder."""
    if manifest.encoder is None or manifest.cross is None:
        return None
    rng, memory = np.random.default_rng(1), []
    for layer in manifest.cross.layers:
        key = rng.standard_normal((1, layer.heads, length, layer.head_dim), np.float32)
        value = rng.standard_normal((1, layer.heads, length, layer.head_dim), np.float32)
        if manifest.encoder.values_transposed:
            value = np.ascontiguousarray(value.swapaxes(2, 3))
        memory.append((provider.adopt(key), provider.adopt(value)))
    return Cross(memory, length)


def encoder_inputs(provider: Provider, manifest: Manifest, session: Session, length: int) -> Buffers:
    """Inputs of an encoder or a frontend, as its session names them: `length` tokens, or a window of sound."""
    rng = np.random.default_rng(2)
    (value,) = session.inference.get_inputs()
    if value.name == "input_ids":
        made: NDArray[Any] = rng.integers(0, manifest.dims.vocab_size, (1, length), np.int64)
    elif value.name == "pcm":
        assert manifest.speech is not None
        made = rng.normal(0, 0.1, (1, manifest.speech.window_samples)).astype(np.float32)
    else:
        made = rng.standard_normal(value.shape, np.float32)
    return {value.name: provider.adopt(made)}


def sessions(provider: Provider, bundle: Bundle, prefix: Path) -> dict[str, tuple[Session, Session]]:
    """By role, a plain session and one with the profiler on."""
    have = {graph.role for graph in bundle.manifest.graphs}
    if bundle.manifest.prefill is not None and not bundle.manifest.prefill.known:
        have.remove("prefill")
    return {
        role: (
            provider.open(bundle, role),
            provider.open(bundle, role, profile=prefix.with_name(f"{prefix.name}-{role}")),
        )
        for role in ROLES
        if role in have
    }
