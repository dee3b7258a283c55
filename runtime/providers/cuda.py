"""NVIDIA's GPUs, with the package `onnxruntime-gpu` in the place of `onnxruntime`.

Keys, values and logits stay in the GPU's memory. Steps over the same memory are recorded as CUDA graphs and replayed:
launching the few hundred kernels of a small model one by one takes longer than they run.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import math
import weakref
from collections.abc import Callable, Hashable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import DTypeLike, NDArray

from edge.errors import BundleError, DeviceError, InputError, on_one_line
from edge.extras import install
from edge.manifest import Manifest
from edge.runtime.mapped_file import MappedFile, reading
from edge.runtime.providers.accelerator import Accelerator, DeviceSession
from edge.runtime.providers.captures import NONE, Captures
from edge.runtime.providers.cpu import arena_bytes, session_options
from edge.runtime.providers.device_graphs import copying, gathering, top
from edge.runtime.providers.device_memory import DeviceBuffer, DeviceMemory, plain_type
from edge.runtime.providers.provider import BFLOAT16, GPU, Binding, Buffer, Device, Session, Support, open_session

NAME = "cuda"
HELP = "NVIDIA's GPUs; of several cuda:1 is the second"
TRAITS = {"onnxruntime": "CUDAExecutionProvider", "numbered": "yes"}

EXECUTION_PROVIDER = TRAITS["onnxruntime"]
MEMORY = "cuda"  # onnxruntime's name of the kind of memory
ON_HOST = {"total_sequence_length"}  # inputs that operators read on the host
MOST_TOKENS = 16  # of a step that is recorded: a prompt's chunks are larger, and each runs once
KEPT_TOPS = 8  # memory of logits that the search for the largest is bound to
OLD_DRIVER = 35  # cudaErrorInsufficientDriver
ONNX_TYPES = {np.dtype(np.float32): 1, np.dtype(np.float16): 10, BFLOAT16: 16}  # TensorProto.DataType


def find() -> Support:
    """Return the support of this machine for NVIDIA's GPUs."""
    package = _package()
    missing = _mixed() or _unusable()
    if missing is not None:
        return Support(package, [], missing)
    devices = [device for device, _ in _listed()]
    return Support(package, devices, None if devices else _no_device())


def make(threads: int | None, manifest: Manifest | None, strict: bool | None, *, device: int | None = None) -> Cuda:
    """The provider over a GPU. device: its number; default: the first. InputError where this machine has none."""
    support = find()
    if support.missing is not None:
        raise InputError(support.missing)
    found, chosen = _listed(), device or 0
    if chosen >= len(found):
        there = ", ".join(f"cuda:{i} ({each.name})" for i, (each, _) in enumerate(found))
        raise InputError(f"There is no GPU {chosen} on this machine; there is {there}.")
    gpu, handle = found[chosen]

    def append(session: ort.SessionOptions, options: dict[str, str]) -> None:
        session.add_provider_for_devices([handle], options)

    return Cuda(gpu, append, number=chosen, threads=threads, arena=arena_bytes(manifest), strict=bool(strict))


def _package() -> str | None:
    try:
        return f"onnxruntime-gpu {importlib.metadata.version('onnxruntime-gpu')}"
    except importlib.metadata.PackageNotFoundError:
        return None


def _mixed() -> str | None:
    """The sentence for an environment with both packages, whose files are the same ones."""
    if _package() is None:
        return None
    try:
        importlib.metadata.version("onnxruntime")
    except importlib.metadata.PackageNotFoundError:
        return None
    return (
        "onnxruntime and onnxruntime-gpu are both installed, and each overwrites files of the other; keep the one for "
        "GPUs: pip uninstall -y onnxruntime onnxruntime-gpu, then pip install --no-deps 'onnxruntime-gpu>=1.31,<2'"
    )


def _unusable() -> str | None:
    """Why onnxruntime's library for CUDA does not load, as a sentence; None where it does."""
    if EXECUTION_PROVIDER not in ort.get_available_providers():
        return (
            f"The installed onnxruntime {ort.__version__} was built without CUDA; in an environment of its own run: "
            f"{install('cuda')} (docs/guide/cuda.md says more)."
        )
    try:
        _register()
    except Exception as e:  # onnxruntime raises types without a common base
        reason = on_one_line(e)
        if "libcuda.so" in reason or "nvcuda" in reason:
            return "This machine has no driver for NVIDIA's GPUs (libcuda is missing); install it, or choose cpu."
        return (
            f"The libraries of CUDA that {_package()} needs cannot be loaded ({reason}); install them with: "
            f"{install('cuda')}"
        )
    return None


@cache
def _register() -> None:
    """Let onnxruntime load CUDA's libraries, from the packages that pip installed or the system's, and its own."""
    ort.preload_dlls()
    library = Path(ort.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"
    if not library.is_file():
        library = library.with_name("onnxruntime_providers_cuda.dll")
    if any(each.ep_name == EXECUTION_PROVIDER for each in ort.get_ep_devices()):
        return
    ort.register_execution_provider_library(EXECUTION_PROVIDER, str(library))


def _listed() -> list[tuple[Device, Any]]:
    """The GPUs with onnxruntime's handles."""
    found = [each for each in ort.get_ep_devices() if each.ep_name == EXECUTION_PROVIDER]
    return [(Device(NAME, GPU, each.device.metadata.get("Description") or each.device.vendor), each) for each in found]


def _no_device() -> str:
    """Why there is no GPU, as CUDA's own library says."""
    if _error_of_count() == OLD_DRIVER:
        return (
            "The driver for NVIDIA's GPUs on this machine is older than CUDA 13, which onnxruntime-gpu was built with; "
            "install a driver of version 580 or later, or choose cpu."
        )
    return f"{_package()} finds no GPU of NVIDIA on this machine; choose cpu."


def _error_of_count() -> int:
    """CUDA's error for a count of its devices; 0 for none, or where its library does not say."""
    for name in ("libcudart.so.13", "cudart64_13.dll"):
        try:
            count = ctypes.c_int()
            return int(ctypes.CDLL(name).cudaGetDeviceCount(ctypes.byref(count)))
        except (OSError, AttributeError):
            continue
    return 0


class Cuda(Accelerator):
    """See `edge.runtime.providers.provider.Provider`.

    Args:
        append: adds the execution provider with these options of it to the options of a session.
        number: of the GPU.
        memory: the kind of memory, by onnxruntime's name.
    """

    def __init__(
        self,
        device: Device,
        append: Callable[[ort.SessionOptions, dict[str, str]], None],
        *,
        number: int = 0,
        threads: int | None = None,
        arena: int = -1,
        strict: bool = False,
        memory: str = MEMORY,
        execution_provider: str = EXECUTION_PROVIDER,
    ) -> None:
        self._add, self._number, self._memory_kind = append, number, memory
        plain = partial(self._appended, {})
        super().__init__(NAME, execution_provider, device, plain, threads=threads, arena=arena, strict=strict)
        self._helpers: dict[Any, Session] = {}
        self._tops: dict[Any, tuple[Binding, NDArray[Any], NDArray[Any]]] = {}

    def _appended(self, more: dict[str, str], session: ort.SessionOptions) -> None:
        self._add(session, {"arena_extend_strategy": "kSameAsRequested", **more})

    def open_steps(
        self, model: Path, name: str, folder: Path, *, weights: int = 0, limit: int | None = None
    ) -> Session:
        options = session_options(folder)
        self._appended({"enable_cuda_graph": "1"} | ({} if limit is None else {"gpu_mem_limit": str(limit)}), options)
        return self._made(model, name, options)

    def _session(self, model: Path | bytes, name: str, folder: Path | None, profile: Path | None = None) -> Session:
        options = session_options(folder)
        self._appended({}, options)
        return self._made(model, name, options, profile)

    def _made(
        self, model: Path | bytes, name: str, options: ort.SessionOptions, profile: Path | None = None
    ) -> Session:
        advice = "the provider cpu may run it"
        try:
            opened = open_session(model, name, options, None, profile, advice)
        except BundleError as e:
            if _is_out_of_memory(str(e)):
                raise InputError(
                    f"The GPU has no memory left for {name}; choose a smaller model or --target-weights int4, or end "
                    "other programs that use it."
                ) from e
            raise
        session = CudaSession(opened.inference, self, opened.files)
        if self._strict:
            self._check_placement(session, name)
        return session

    def allocate(self, shape: tuple[int, ...], dtype: DTypeLike) -> Buffer:
        kind = np.dtype(dtype)
        try:
            value = ort.OrtValue.ortvalue_from_shape_and_type(
                list(shape), plain_type(kind), self._memory_kind, self._number
            )
            # What nobody has written may be NaN, and 0 times NaN is no 0.
            value.update_inplace(np.zeros(shape, plain_type(kind)))
        except MemoryError:
            raise
        except Exception as e:  # onnxruntime raises types without a common base
            raise MemoryError(f"{math.prod(shape) * kind.itemsize} bytes: {on_one_line(e)}") from None
        return DeviceBuffer(DeviceMemory(value, kind), shape)

    def adopt(self, array: NDArray[Any]) -> Buffer:
        buffer = self.allocate(array.shape, array.dtype)
        assert isinstance(buffer, DeviceBuffer)
        buffer.memory.host = array
        return buffer

    def part(self, buffer: Buffer, shape: tuple[int, ...], start: int = 0) -> Buffer:
        assert isinstance(buffer, DeviceBuffer), "another provider's memory"
        return buffer.part(shape, start)

    def read(self, buffer: Buffer) -> NDArray[Any]:
        assert isinstance(buffer, DeviceBuffer), "another provider's memory"
        size = math.prod(buffer.shape)
        whole = buffer.memory.read().reshape(-1)
        start = (buffer.pointer - int(buffer.value.data_ptr())) // buffer.dtype.itemsize
        return whole[start : start + size].reshape(buffer.shape)

    def copy(self, source: Buffer, target: Buffer, rows: int) -> None:
        """All rows: onnxruntime has no operator for some of them in place."""
        binding = self._helper("copy", source.dtype).bind()
        binding.input("x", source)
        binding.output("y", target)
        binding.run()

    def copy_rows(self, buffer: Buffer, rows: NDArray[np.intp], start: int) -> None:
        order = np.arange(buffer.shape[2], dtype=np.int64)
        order[start : start + len(rows)] = rows
        binding, moved = self._helper("gather", buffer.dtype).bind(), self.allocate(buffer.shape, buffer.dtype)
        binding.input("x", buffer)
        binding.input("rows", self.adopt(order))
        binding.output("y", moved)
        binding.run()
        self.copy(moved, buffer, buffer.shape[2])

    def largest(self, logits: Buffer, count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        assert isinstance(logits, DeviceBuffer), "another provider's memory"
        key = logits.pointer, logits.shape, count
        found = self._tops.get(key)
        if found is None:
            while len(self._tops) >= KEPT_TOPS:
                self._tops.pop(next(iter(self._tops)))
            binding = self._helper("top", logits.dtype, count).bind()
            values = self.allocate((*logits.shape[:-1], count), np.float32)
            tokens = self.allocate((*logits.shape[:-1], count), np.int64)
            binding.input("x", logits)
            binding.output("values", values)
            binding.output("places", tokens)
            found = self._tops[key] = binding, values.array, tokens.array
        binding, best, places = found
        binding.run()
        return best.reshape(-1, count).copy(), places.reshape(-1, count).copy()

    def _helper(self, kind: str, dtype: np.dtype[Any], count: int = 0) -> Session:
        """A session over a small graph of our own."""
        key = kind, dtype, count
        if key not in self._helpers:
            made = {"copy": copying, "gather": gathering}
            model = top(count) if kind == "top" else made[kind](ONNX_TYPES[dtype])
            self._helpers[key] = self._session(model, f"what does {kind} on the GPU", None)
        return self._helpers[key]


class CudaSession(DeviceSession):
    """See `Session`."""

    def __init__(self, inference: ort.InferenceSession, provider: Cuda, files: Iterable[MappedFile]) -> None:
        super().__init__(inference, provider.name, files)
        self.memory_kind, self.number = provider._memory_kind, provider._number
        self.captures = Captures(inference.release_captured_graph)

    def bind(self) -> Binding:
        return CudaBinding(self)

    def _guarded(self, run: Callable[[], Any]) -> Any:
        try:
            return super()._guarded(run)
        except DeviceError as e:
            if _is_out_of_memory(str(e)):
                raise DeviceError(
                    "The GPU has no memory left for this step, and the answer ends here; choose a smaller --context, "
                    "fewer prompts at a time, or --provider cpu."
                ) from e
            raise


class CudaBinding(Binding):
    """See `Binding`. What the host has written goes to the GPU before a run, and what it reads comes back after it."""

    def __init__(self, session: CudaSession) -> None:
        self._bound, self._session = session.inference.io_binding(), session
        self._inputs: dict[str, DeviceBuffer] = {}
        self._outputs: dict[str, DeviceBuffer] = {}
        self._hosts: dict[str, NDArray[Any]] = {}
        self._step: Hashable | None = None
        self._recordable = False
        self._options: dict[int, ort.RunOptions] = {}
        self._known: set[Hashable] = set()  # steps that this ran, of those that are remembered
        weakref.finalize(self, session.captures.drop, self._known)

    def run(self) -> None:
        """Run what is bound. It is no attribute, as in its base, which would keep this binding alive."""
        reading(self._session.files, partial(self._session._guarded, self._run))()

    def input(self, name: str, buffer: Buffer) -> None:
        assert isinstance(buffer, DeviceBuffer), "another provider's memory"
        if name in ON_HOST:
            self._hosts[name] = buffer.array
            self._bound.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(buffer.array))
        else:
            self._bound.bind_input(name, *self._place(buffer))
            self._inputs[name] = buffer
        if name == "input_ids":
            self._recordable = math.prod(buffer.shape) <= MOST_TOKENS or buffer.shape[1] == 1
        self._step = None

    def output(self, name: str, buffer: Buffer) -> None:
        assert isinstance(buffer, DeviceBuffer), "another provider's memory"
        self._bound.bind_output(name, *self._place(buffer))
        self._outputs[name] = buffer
        self._step = None

    def _place(self, buffer: DeviceBuffer) -> tuple[str, int, Any, list[int], int]:
        kind, session = onnx_type(buffer.dtype), self._session
        return session.memory_kind, session.number, kind, list(buffer.shape), buffer.pointer

    def _run(self) -> None:
        for buffer in self._inputs.values():
            buffer.memory.send()
        number = NONE
        if self._recordable:
            if self._step is None:
                self._step = self._known_by()
            number = self._session.captures.number(self._step)
        self._session.inference.run_with_iobinding(self._bound, self._options_of(number))
        for buffer in self._outputs.values():
            buffer.memory.fetch()

    def _known_by(self) -> Hashable:
        """Return the identity of a step: the addresses that it reads and writes, and the numbers that operators read on
        the host."""
        bound = [*self._inputs.items(), *self._outputs.items()]
        hosts = ((name, int(array)) for name, array in self._hosts.items())
        step = (*((name, buffer.pointer, buffer.shape) for name, buffer in bound), *hosts)
        captures = self._session.captures
        for gone in [known for known in self._known if known not in captures]:  # another text's encoder, say
            self._known.remove(gone)
        self._known.add(step)
        return step

    def _options_of(self, number: int) -> ort.RunOptions:
        options = self._options.get(number)
        if options is None:
            options = self._options[number] = ort.RunOptions()
            options.add_run_config_entry("gpu_graph_id", str(number))
        return options


def onnx_type(dtype: np.dtype[Any]) -> Any:
    """Return a type as onnxruntime's bindings expect it: numpy's type, or ONNX's number for bfloat16."""
    return ONNX_TYPES[dtype] if dtype == BFLOAT16 else dtype.type


def _is_out_of_memory(text: str) -> bool:
    return any(sign in text.lower() for sign in ("out of memory", "failed to allocate memory", "available memory of"))
