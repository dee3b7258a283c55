"""The CPU execution provider."""

from __future__ import annotations

import contextlib
import functools
import math
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import DTypeLike, NDArray

from edge.bundle import WEIGHTS, Bundle
from edge.errors import BundleError
from edge.manifest import Manifest
from edge.runtime.kernels.gguf import find_gguf, refuse_without_kernels
from edge.runtime.kernels.graph import KernelGraph, kernel_graph, sizes_of
from edge.runtime.kernels.graph_check import read_graph
from edge.runtime.kernels.library import Kernels, find_kernels, without_kernels
from edge.runtime.kernels.units import Units
from edge.runtime.largest import largest_of_each
from edge.runtime.mapped_file import check, mapped_file, unchanged
from edge.runtime.providers.huge_pages import huge_pages
from edge.runtime.providers.instructions import ARM
from edge.runtime.providers.provider import (
    CPU,
    Buffer,
    Device,
    Session,
    Support,
    find_weights,
    nodes_by_provider,
    open_session,
)
from edge.runtime.providers.threads import share_thread_pool

NAME = "cpu"
HELP = "the processor, on any machine"
TRAITS = {"onnxruntime": "CPUExecutionProvider", "kernels": "edge_kernels"}
EXECUTION_PROVIDER = TRAITS["onnxruntime"]
LARGE = 2**16  # bytes from which on memory is taken from the system, which hands it out page by page as it is written
PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}  # Windows has none
AUDIO_ROWS = 16  # rows of activations for each of an encoder's frames: half are alive, which leaves the arena few gaps

# On Arm attention by blocks (flash) gives a token other last bits in a step of 3 tokens than in one of 2: drafts would
# change answers. Without blocks all steps agree, and the scores of a step are in memory as a whole.
if ARM:
    os.environ.setdefault("ORT_GQA_DISABLE_FLASH_ATTENTION", "1")


def find() -> Support:
    """The processor, which every onnxruntime has."""
    return Support(f"onnxruntime {ort.__version__}", _devices())


def make(threads: int | None = None, manifest: Manifest | None = None, strict: bool | None = None) -> Cpu:
    """The provider. The first one of a process sizes its pool of threads and its arena of activations. strict: makes no
    difference, for the processor runs every node."""
    return Cpu(threads, arena_bytes(manifest))


def _devices() -> list[Device]:
    found = (each.device for each in ort.get_ep_devices() if each.ep_name == EXECUTION_PROVIDER)
    return [Device(NAME, CPU, device.vendor) for device in found]


class Cpu:
    """See `edge.runtime.providers.provider.Provider`. arena: bytes of the arena's first region; -1: onnxruntime's."""

    name = NAME
    simulated = False
    own_kernels = True  # where they are installed

    def __init__(self, threads: int | None = None, arena: int = -1) -> None:
        self.threads = share_thread_pool(threads)
        _share_arena(arena)

    def devices(self) -> list[Device]:
        return _devices()

    def open(self, bundle: Bundle, role: str, *, profile: Path | None = None, units: Units | None = None) -> Session:
        bundle.check_external()
        with unchanged([mapped_file(bundle.path(WEIGHTS))]):  # from what was packed to what is loaded
            return self._open(bundle, role, profile, units)

    def _open(self, bundle: Bundle, role: str, profile: Path | None, units: Units | None) -> Session:
        path, weights = bundle.path(bundle.manifest.graph(role).path), bundle.path(WEIGHTS)
        kernels = find_kernels() if self.own_kernels else None
        own = None
        if kernels is None:
            if find_gguf(read_graph(path, bundle.root, sizes_of(bundle)).graph):
                raise refuse_without_kernels(bundle.manifest.name)
        else:
            own = kernel_graph(bundle, path, kernels, apart=profile is not None, units=units)
        if kernels is not None and own is not None:
            try:
                return self._own(kernels, own, str(path), bundle.root, profile)
            except BundleError as e:
                check(own.files)
                if own.needs_kernels:
                    raise
                without_kernels(str(e))
        if units is not None:
            raise BundleError(
                f"edge_kernels, which leave out layers of {bundle.manifest.name}, cannot be used here; it runs without"
                " --skip and without drafts by parts of the model."
            )
        with huge_pages(weights.stat().st_size):
            return self._session(path, str(path), bundle.root, profile)

    def _own(self, kernels: Kernels, graph: KernelGraph, name: str, folder: Path, profile: Path | None) -> Session:
        """A session over a graph of our kernels. onnxruntime's keeps the packed weights that it reads."""
        options = session_options(folder)
        try:
            options.register_custom_ops_library(str(kernels.path))
        except Exception as e:  # onnxruntime's errors have no class of their own
            raise BundleError(f"onnxruntime {ort.__version__} does not take edge_kernels ({e})") from e
        with graph.lent(kernels) as model:
            session = open_session(model, name, options, [EXECUTION_PROVIDER], profile, files=graph.files)
        session.independent, session.mixes, session.inside = graph.independent, graph.mixes, graph.inside
        session.inference.edge_matrices = graph.matrices  # bindings and runs keep it alive, and not ours
        return session

    def open_model(self, model: Path | bytes, name: str, folder: Path | None = None, *, weights: int = 0) -> Session:
        with huge_pages(weights):
            return self._session(model, name, folder)

    def _session(self, model: Path | bytes, name: str, folder: Path | None, profile: Path | None = None) -> Session:
        return open_session(model, name, session_options(folder), [EXECUTION_PROVIDER], profile)

    def allocate(self, shape: tuple[int, ...], dtype: DTypeLike) -> Buffer:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if size < LARGE:
            return self.adopt(np.zeros(shape, dtype))
        try:  # np.zeros may hand out memory that was used before, and then writes every page of it
            memory = mmap.mmap(-1, size, **PRIVATE)
        except (OSError, OverflowError) as e:
            raise MemoryError(f"{size} bytes: {e}") from None
        return self.adopt(np.frombuffer(memory, dtype).reshape(shape))

    def adopt(self, array: NDArray[Any]) -> Buffer:
        return Buffer(array, ort.OrtValue.ortvalue_from_numpy(array))

    def part(self, buffer: Buffer, shape: tuple[int, ...], start: int = 0) -> Buffer:
        return self.adopt(buffer.array.reshape(-1)[start : start + math.prod(shape)].reshape(shape))

    def open_steps(
        self, model: Path, name: str, folder: Path, *, weights: int = 0, limit: int | None = None
    ) -> Session:
        return self.open_model(model, name, folder, weights=weights)

    def copy_rows(self, buffer: Buffer, rows: NDArray[np.intp], start: int) -> None:
        buffer.array[:, :, start : start + len(rows)] = buffer.array[:, :, rows]

    def copy(self, source: Buffer, target: Buffer, rows: int) -> None:
        target.array[:, :, :rows] = source.array[:, :, :rows]

    def read(self, buffer: Buffer) -> NDArray[Any]:
        return buffer.array

    def largest(self, logits: Buffer, count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        return largest_of_each(logits.array.reshape(-1, logits.shape[-1]), count)

    def placement(self, session: Session) -> dict[str, list[str]]:
        return nodes_by_provider(session)


def session_options(folder: Path | None) -> ort.SessionOptions:
    """Options of a session whose activations are in this process's memory. folder: of its external weights."""
    options = ort.SessionOptions()
    options.use_per_session_threads = False
    options.log_severity_level = 4  # warnings are about the graph, which only an export can change; errors are raised
    # Else the second step of a shape allocates all of its activations again, and keeps both: 76 MB more for Whisper
    # base's encoder, 6 MB for a chunk of 128 tokens of SmolLM2, at the same speed.
    options.enable_mem_pattern = False
    # Else buffers wait for the next operator of their size: 26 MB of Whisper base's encoder, 6 MB for a chunk of 128
    # tokens of SmolLM2-135M.
    options.enable_mem_reuse = False
    # Threads take an operator's work in small blocks: a delayed thread delays a step less (2% faster).
    options.add_session_config_entry("session.dynamic_block_base", "4")
    options.add_session_config_entry("session.use_env_allocators", "1")
    if folder is not None:
        find_weights(options, folder)
    return options


@functools.cache
def _share_arena(first: int) -> None:
    """Let all sessions of this process take their activations from one arena, in which the next reuses memory: 20 MB of
    Whisper's graphs over 30 s of audio. Weights are not in it. first: bytes of its first region."""
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    growth = {"max_mem": 0, "arena_extend_strategy": 0, "initial_chunk_size_bytes": first}
    # The first arena of a process stays, a program's own too.
    with contextlib.suppress(RuntimeError):
        ort.create_and_register_allocator(memory, ort.OrtArenaCfg(growth))


def arena_bytes(manifest: Manifest | None) -> int:
    """Bytes of the arena's first region: the activations of a whole window of sound; else -1."""
    encoder = None if manifest is None else manifest.encoder
    if encoder is None or encoder.input != "audio":
        return -1
    return AUDIO_ROWS * encoder.max_length * encoder.hidden_size * 4
