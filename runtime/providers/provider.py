"""The protocol of execution providers: everything outside this folder is the same for a CPU, an NPU and a GPU.

A provider is a module of this folder with a `NAME`, a one-line `HELP`, `TRAITS` that say how onnxruntime calls it, and
two functions: `find` returns this machine's support for it, and `make` gives a `Provider`. Sessions are onnxruntime's
on every device; how they are made and where memory is differ.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort
from numpy.typing import DTypeLike, NDArray

from edge.bundle import WEIGHTS, Bundle
from edge.errors import BundleError, on_one_line
from edge.manifest import Manifest
from edge.runtime.kernels.units import Units
from edge.runtime.mapped_file import MappedFile, check, mapped_file, reading

CPU, GPU, NPU = "cpu", "gpu", "npu"  # kinds of devices
RUNS, SIMULATES, COMPILES = "runs", "simulates", "compiles"
LINKED = "edge.folder_of_links"  # an option of ours, to which onnxruntime pays no attention
FOLDER = "session.model_external_initializers_file_folder_path"  # onnxruntime's option: where the weights are


BFLOAT16 = np.dtype([("bfloat16", "<u2")])  # what numpy, which has no such type, takes its memory for


def memory_type(name: str) -> np.dtype[Any]:
    """The type of arrays that have memory for floats of this type."""
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


@dataclass(frozen=True)
class Device:
    """A device that a provider knows. kind: ``cpu``, ``gpu`` or ``npu``. use: whether it ``runs`` graphs, ``simulates``
    a device that does, or only ``compiles`` graphs for devices that are not here. chip: that it is a part of, as graphs
    are compiled for it: sm8650; None where it is not known."""

    provider: str
    kind: str
    name: str
    use: str = RUNS
    chip: str | None = None


@dataclass(frozen=True)
class Support:
    """Support of this machine for a provider. package: that the provider comes from, with its version. devices: the
    preferred one first. missing: why it runs no graphs here, and what to do, as a sentence; None where it does."""

    package: str | None
    devices: list[Device]
    missing: str | None = None

    @property
    def device(self) -> Device | None:
        """The device that runs graphs."""
        return None if self.missing else next((each for each in self.devices if each.use != COMPILES), None)

    def is_strict(self, asked: bool | None) -> bool:
        """True if a graph must run on the provider as a whole: as asked, or by default where its device is an NPU."""
        return (self.device is not None and self.device.kind == NPU) if asked is None else asked


class Buffer:
    """Memory that sessions read and write in place: `array` for the host, `value` for sessions. Its content may change
    between two runs, its shape and address never do."""

    __slots__ = ("array", "value")

    def __init__(self, array: NDArray[Any], value: ort.OrtValue) -> None:
        self.array = array  # which `value` shares the memory of and does not keep alive
        self.value = value

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Binding:
    """A session whose inputs and outputs are bound once and run many times. Binding an input again replaces it. files:
    that its runs read."""

    def __init__(self, session: ort.InferenceSession, files: Sequence[MappedFile] = ()) -> None:
        self._bound = session.io_binding()
        self.run: Callable[[], None] = reading(files, partial(session.run_with_iobinding, self._bound))

    def input(self, name: str, buffer: Buffer) -> None:
        """Read an input from this memory."""
        self._bound.bind_ortvalue_input(name, buffer.value)

    def output(self, name: str, buffer: Buffer) -> None:
        """Write an output to this memory."""
        self._bound.bind_ortvalue_output(name, buffer.value)


NUMPY_TYPES: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(bfloat16)": BFLOAT16,
}


class Session:
    """A graph that a provider has opened. inputs, outputs: their names. optional: inputs that may be omitted. types:
    those of inputs that are floats. files: that its runs read: where one was changed, a run ends with the error that
    says so."""

    def __init__(self, inference: ort.InferenceSession, files: Iterable[MappedFile] = ()) -> None:
        self.inference = inference
        self.files = list(files)
        inputs = inference.get_inputs()
        self.inputs = frozenset(value.name for value in inputs)
        self.optional = frozenset(value.name for value in inference.get_overridable_initializers())
        self.types = {value.name: NUMPY_TYPES[value.type] for value in inputs if value.type in NUMPY_TYPES}
        outputs = inference.get_outputs()
        self.outputs = frozenset(value.name for value in outputs)
        # Of inputs and outputs: a number, or a name where the size differs from run to run.
        self.shapes: dict[str, list[int | str | None]] = {value.name: value.shape for value in (*inputs, *outputs)}
        # Whether a row of its results is the same, bit for bit, whatever stands next to it in a step.
        self.independent = False
        # Whether a step may have, in a row, a token of each of several texts and several of the last one.
        self.mixes = False
        # The names of the bundle's nodes in each node that is several of them.
        self.inside: dict[str, list[str]] = {}
        # Whether a step may have a token of each of several sequences.
        self.supports_batching = any(value.name == "input_ids" and value.shape[0] != 1 for value in inputs)

    def bind(self) -> Binding:
        """A new binding."""
        return Binding(self.inference, self.files)

    def run(self, inputs: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """All outputs, each in its own memory."""
        made: list[NDArray[Any]] = reading(self.files, partial(self.inference.run, None, inputs))()
        return made


class Provider(Protocol):
    """An opened execution provider of one engine. threads: of the host's pool, which all sessions share. simulated:
    whether its device is not here, and simulated."""

    name: str
    threads: int
    simulated: bool

    def devices(self) -> list[Device]:
        """The devices of this provider on this machine."""

    def open(self, bundle: Bundle, role: str, *, profile: Path | None = None, units: Units | None = None) -> Session:
        """A session over the graph with this role. profile: prefix of the file that onnxruntime's profiler writes.
        units: that the graph is to be in, where `runs_in_units` says that it can be. BundleError where the bundle has
        no such graph, or it cannot be opened on this provider."""

    def open_model(self, model: Path | bytes, name: str, folder: Path | None = None, *, weights: int = 0) -> Session:
        """Open a session like `open`, over a model: a file, or the bytes of one. name: for errors. folder: of its
        external weights. weights: maximum bytes of them."""

    def allocate(self, shape: tuple[int, ...], dtype: DTypeLike) -> Buffer:
        """Zeroed memory, or MemoryError; large blocks are taken from the system as they are written."""

    def adopt(self, array: NDArray[Any]) -> Buffer:
        """The host's own array as memory that sessions read."""

    def part(self, buffer: Buffer, shape: tuple[int, ...], start: int = 0) -> Buffer:
        """A part of a buffer, which shares its memory, from its element `start` on."""

    def open_steps(
        self, model: Path, name: str, folder: Path, *, weights: int = 0, limit: int | None = None
    ) -> Session:
        """Open a session like `open_model`, over a graph of steps, which run many times over the same memory. limit:
        maximum bytes that a device with memory of its own may take for them."""

    def copy_rows(self, buffer: Buffer, rows: NDArray[np.intp], start: int) -> None:
        """Copy `rows` [N] of keys or values [1, heads, rows, head_dim] to the rows from `start` on."""

    def copy(self, source: Buffer, target: Buffer, rows: int) -> None:
        """Copy the first rows of keys or values [1, heads, rows, head_dim] to memory of the same shape."""

    def read(self, buffer: Buffer) -> NDArray[Any]:
        """Return the present content of a buffer."""

    def largest(self, logits: Buffer, count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The largest logits of each of R rows of [..., V], and their tokens: [R, count] each, in order; of equals the
        first tokens."""

    def placement(self, session: Session) -> dict[str, list[str]]:
        """The nodes of a session that each execution provider runs, by onnxruntime's names."""


class ProviderModule(Protocol):
    """The protocol of a provider's module."""

    NAME: str
    HELP: str
    TRAITS: dict[str, str]  # "onnxruntime": its name of the execution provider; "kernels": what may compute instead

    def find(self) -> Support:
        """Return the support of this machine for the provider."""

    def make(self, threads: int | None, manifest: Manifest | None, strict: bool | None, **device: int) -> Provider:
        """The provider, for the graphs of a manifest or for any. strict: see `open_provider`. device: its number, where
        the traits say `numbered`. InputError where this machine cannot run graphs with it."""


def open_session(
    model: Path | bytes,
    name: str,
    options: ort.SessionOptions,
    providers: list[str] | None,
    profile: Path | None = None,
    advice: str = "export or copy the bundle again",
    files: Iterable[MappedFile] = (),
) -> Session:
    """A session on exactly these providers, without onnxruntime's second try on the CPU; BundleError where it fails.

    providers: by onnxruntime's names; default: those that the options hold. advice: what to do where it fails. files:
    that it reads next to its weights.
    """
    read = [*_weights_of(model, options), *files]
    model = _without_links(model, options)
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(profile)
    try:
        session = Session(ort.InferenceSession(model, options, providers=providers, enable_fallback=False), read)
    except Exception as e:  # onnxruntime raises a dozen types without a common base
        check(read)
        raise BundleError(
            f"{name} could not be loaded by onnxruntime {ort.__version__} ({on_one_line(e)}); {advice}."
        ) from e
    check(read)
    return session


def find_weights(options: ort.SessionOptions, folder: Path) -> None:
    """Set the folder in which a session looks for its weights; where that has links, the folder that they lead to."""
    weights = folder / WEIGHTS
    real = Path(os.path.realpath(weights)).parent if weights.is_symlink() else folder
    if real == folder or real.is_relative_to(os.path.realpath(folder)):
        options.add_session_config_entry(FOLDER, str(folder))
        return
    options.add_session_config_entry(FOLDER, str(real))
    options.add_session_config_entry(LINKED, str(folder))


def _folder_of(model: Path | bytes, options: ort.SessionOptions) -> Path | None:
    """Return the folder in which a model looks for its weights, if it is known."""
    if (folder := _entry(options, LINKED) or _entry(options, FOLDER)) is not None:
        return Path(folder)
    return None if isinstance(model, bytes) else model.parent


def _entry(options: ort.SessionOptions, name: str) -> str | None:
    try:
        return str(options.get_session_config_entry(name))
    except RuntimeError:  # there is none
        return None


def _weights_of(model: Path | bytes, options: ort.SessionOptions) -> list[MappedFile]:
    """The file of weights that a model reads, where there is one."""
    if (folder := _folder_of(model, options)) is None:
        return []
    path = folder / WEIGHTS
    try:
        return [mapped_file(path)] if path.is_file() else []
    except OSError as e:
        raise BundleError(f"{path} cannot be read: {e.strerror}.") from None


def _without_links(model: Path | bytes, options: ort.SessionOptions) -> Path | bytes:
    """A model whose weights are files themselves: onnxruntime refuses links that leave the folder, as a hub's cache
    has them. The graph was looked through before, and names nothing else."""
    folder = _entry(options, LINKED)
    if folder is None:
        return model
    from edge.runtime.onnx_proto import ModelProto

    parsed = ModelProto.FromString(model if isinstance(model, bytes) else model.read_bytes())
    _lead(parsed.graph, Path(folder))
    return bytes(parsed.SerializeToString())


def _lead(graph: Any, folder: Path) -> None:
    """Let the tensors of a graph, and of those inside it, name the files that links in a folder lead to."""
    for tensor in graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = Path(os.path.realpath(folder / entry.value)).name
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _lead(attribute.g, folder)


def nodes_by_provider(session: Session) -> dict[str, list[str]]:
    """The names of a session's nodes by the execution provider that runs them, as onnxruntime recorded it."""
    nodes: defaultdict[str, list[str]] = defaultdict(list)
    for part in session.inference.get_provider_graph_assignment_info():
        nodes[part.ep_name] += [
            name for node in part.get_nodes() for name in session.inside.get(node.name, [node.name])
        ]
    return dict(nodes)
