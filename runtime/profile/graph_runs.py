"""Running a bundle's graphs one by one with made-up inputs, plainly or with onnxruntime's profiler writing along."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.errors import BundleError
from edge.manifest import Manifest
from edge.runtime.cache import KVCache
from edge.runtime.encoder import Cross
from edge.runtime.providers import cpu

ROLES = ("frontend", "encoder", "decoder", "wide")  # in the order in which they are shown
SUFFIX = "_kernel_time"  # which the profiler puts behind a node's name

Arrays = dict[str, NDArray[Any]]


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


def open_profiled(bundle: Bundle, role: str, plain: ort.InferenceSession, prefix: Path) -> ort.InferenceSession:
    """A session like `plain` that writes a profile to a file whose name begins with `prefix`.

    Raises:
        BundleError: onnxruntime refuses the graph.
    """
    path = bundle.path(bundle.manifest.graph(role).path)
    with _profiling(plain.get_session_options(), prefix) as options:
        try:
            return ort.InferenceSession(path, options, providers=plain.get_providers())
        except Exception as e:  # onnxruntime raises a dozen types without a common base
            raise BundleError(f"{path} could not be loaded by onnxruntime {ort.__version__}: {e}") from e


@contextmanager
def _profiling(options: ort.SessionOptions, prefix: Path) -> Iterator[ort.SessionOptions]:
    """A session's options, with the profiler on: they are the session's own, so it is switched off again."""
    options.enable_profiling, options.profile_file_prefix = True, str(prefix)
    try:
        yield options
    finally:
        options.enable_profiling = False


def finish(session: ort.InferenceSession) -> list[Run]:
    """End a session's profile, read it, and delete its file.

    Raises:
        OSError: the file could not be written or read.
    """
    origin = session.get_profiling_start_time_ns() / 1e3
    path = Path(session.end_profiling())
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


def bind(session: ort.InferenceSession, inputs: Arrays, outputs: Arrays) -> ort.IOBinding:
    """The session's inputs and outputs bound to these arrays, which the caller keeps. An output that is not among them
    is allocated by each run."""
    binding = session.io_binding()
    for value in session.get_inputs():
        binding.bind_ortvalue_input(value.name, ort.OrtValue.ortvalue_from_numpy(inputs[value.name]))
    for value in session.get_outputs():
        if value.name in outputs:
            binding.bind_ortvalue_output(value.name, ort.OrtValue.ortvalue_from_numpy(outputs[value.name]))
        else:
            binding.bind_output(value.name)
    return binding


class DecoderStep:
    """Inputs of a step of `size` tokens, with logits of the last one, on a cache that is full of made-up rows."""

    def __init__(self, manifest: Manifest, cache: KVCache, size: int) -> None:
        rng = np.random.default_rng(size)
        self.size, self._cache = size, cache
        self._positions = np.zeros((1, size), np.int64)
        self._seqlens, self._total = np.zeros(1, np.int32), np.zeros((), np.int32)
        self.inputs: Arrays = {
            "input_ids": rng.integers(0, manifest.dims.vocab_size, (1, size), np.int64),
            "position_ids": self._positions,
            "seqlens_k": self._seqlens,
            "total_sequence_length": self._total,
            "logit_rows": np.array([size - 1], np.int64),
            "attention_bias": np.zeros((1, 1, size, cache.capacity), np.float32),
            "key_positions": cache.positions,
        }
        self.outputs: Arrays = {"logits": np.empty((1, 1, manifest.dims.vocab_size), np.float32)}
        for i, (key, value) in enumerate(cache.buffers):
            self.inputs[f"past.{i}.key"] = self.outputs[f"present.{i}.key"] = key
            self.inputs[f"past.{i}.value"] = self.outputs[f"present.{i}.value"] = value
        if cache.cross is not None:
            self.inputs |= cross_arrays(cache.cross)

    @property
    def room(self) -> int:
        """Tokens that can stand before it."""
        return self._cache.capacity - self.size

    def at(self, context: int) -> None:
        """Let the next run follow `context` tokens."""
        self._positions[0] = np.arange(context, context + self.size)
        self._total[...] = context + self.size
        self._seqlens[0] = context + self.size - 1


def cross_arrays(cross: Cross) -> Arrays:
    """An encoder's keys and values under the names that they have in both graphs."""
    return {
        f"cross.{i}.{part}": array
        for i, pair in enumerate(cross.buffers)
        for part, array in zip(("key", "value"), pair, strict=True)
    }


def made_up_cache(manifest: Manifest, capacity: int, cross: Cross | None) -> KVCache:
    """A cache whose rows are all written: unwritten ones would all be one and the same page of zeros."""
    cache = KVCache(manifest.kv, capacity, cross)
    rng = np.random.default_rng(0)
    for pair in cache.buffers:
        for buffer in pair:
            for head in buffer[0]:
                head[:] = rng.standard_normal(head.shape, np.float32)
    return cache


def made_up_cross(manifest: Manifest, length: int) -> Cross | None:
    """What an encoder would make of an input of `length` rows; None where there is no encoder."""
    if manifest.encoder is None or manifest.cross is None:
        return None
    rng, buffers = np.random.default_rng(1), []
    for layer in manifest.cross.layers:
        key = rng.standard_normal((1, layer.heads, length, layer.head_dim), np.float32)
        value = rng.standard_normal((1, layer.heads, length, layer.head_dim), np.float32)
        if manifest.encoder.values_transposed:
            value = np.ascontiguousarray(value.swapaxes(2, 3))
        buffers.append((key, value))
    return Cross(buffers, length)


def encoder_inputs(manifest: Manifest, session: ort.InferenceSession, length: int) -> Arrays:
    """Inputs of an encoder or a frontend, as its session names them: `length` tokens, or a window of sound."""
    rng = np.random.default_rng(2)
    (value,) = session.get_inputs()
    if value.name == "input_ids":
        return {value.name: rng.integers(0, manifest.dims.vocab_size, (1, length), np.int64)}
    if value.name == "pcm":
        assert manifest.speech is not None
        return {value.name: rng.normal(0, 0.1, (1, manifest.speech.window_samples)).astype(np.float32)}
    return {value.name: rng.standard_normal(value.shape, np.float32)}


def sessions(bundle: Bundle, prefix: Path) -> dict[str, tuple[ort.InferenceSession, ort.InferenceSession]]:
    """By role, a plain session and one with the profiler on."""
    have = {graph.role for graph in bundle.manifest.graphs}
    if bundle.manifest.wide is not None and not bundle.manifest.wide.known:
        have.remove("wide")
    opened = {}
    for role in (role for role in ROLES if role in have):
        plain = cpu.open_session(bundle, role)
        opened[role] = plain, open_profiled(bundle, role, plain, prefix.with_name(f"{prefix.name}-{role}"))
    return opened
