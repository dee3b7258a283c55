"""What a bundle says of graphs for one kind of device: `targets/NAME/target.json`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from edge.bundle import check_inside
from edge.errors import BundleError
from edge.typed_json import read_json, typed

if TYPE_CHECKING:
    from edge.bundle import Bundle

TARGET_VERSION = 1
CUDA = "cuda"
TARGETS = {"npu-qualcomm": "qnn", CUDA: "cuda"}  # and the provider that runs their graphs


@dataclass(frozen=True)
class Soc:
    """A chip. model: QNN's number of it. architecture: of its Hexagon processor. bandwidth: the most that its memory
    moves, in GB/s; None where no figure is published."""

    name: str
    model: int
    architecture: int
    sold_as: str
    bandwidth: float | None = None


# Numbers and architectures as ExecuTorch lists them (backends/qualcomm/serialization/qc_schema.py). Those below 73 are
# left out: their products of 16-bit activations err 15 times as much on the simulator. Bandwidths: docs/guide/npu.md.
SOCS = {
    soc.name: soc
    for soc in (
        Soc("sm8550", 43, 73, "Snapdragon 8 Gen 2", 67.2),
        Soc("sm8650", 57, 75, "Snapdragon 8 Gen 3", 76.8),
        Soc("sm8750", 69, 79, "Snapdragon 8 Elite", 84.8),
        Soc("sm8850", 87, 81, "Snapdragon 8 Elite Gen 5", 84.8),
    )
}


@dataclass(frozen=True)
class Cost:
    """What a run of a graph costs any device, counted at export. Bytes that it moves, each once: of the weights, of the
    keys and values that it reads, and of its other inputs and its outputs; what stays within the graph is not counted.
    products: multiply-adds of matrix products and convolutions."""

    weights: int
    kv: int
    rest: int
    products: int

    @property
    def bytes(self) -> int:
        return self.weights + self.kv + self.rest

    def shortest_ms(self, soc: Soc) -> float | None:
        """An estimate of what a run takes at least: the bytes over the bandwidth. None where that one is unknown."""
        return None if soc.bandwidth is None else self.bytes / soc.bandwidth / 1e6


@dataclass(frozen=True)
class StaticGraph:
    """A graph for steps of `size` tokens, of which `rows` have logits: all of them, or the one that is asked for.

    paths: in the bundle, of its parts, which run one after the other; most graphs have one. cost: None where the bundle
    is older.
    """

    size: int
    rows: int
    paths: list[str]
    cost: Cost | None = None


@dataclass(frozen=True)
class Table:
    """A table [rows, columns] float32 that the host reads. input: of the graphs, to which it gives rows of it."""

    input: str
    path: str  # in the bundle
    rows: int
    columns: int


@dataclass(frozen=True)
class StaticEncoder:
    """The graph of an encoder. length: of its input, in tokens, which a text is filled up to, or in frames, of a whole
    window of sound. embedding: as the target's; None for sound, whose features the host makes."""

    path: str
    length: int
    embedding: str | None
    tables: list[Table]
    cost: Cost | None = None


@dataclass(frozen=True)
class Shorter:
    """The same graphs over a cache of fewer rows."""

    context: int
    graphs: list[StaticGraph]


@dataclass(frozen=True)
class Compiled:
    """The graphs compiled for a chip, in the order of `Target.graph_paths`. compiler: by which package and version."""

    soc: str
    architecture: int
    compiler: str
    paths: list[str]


@dataclass(frozen=True)
class Target:
    """Graphs of a decoder at fixed sizes, smallest first, and of its encoder.

    context: rows of the cache. groups: queries that read the same keys. masked: what
    is added to the scores of what a token must not attend to. kv: the type of keys and values, int16. embedding: the
    file with its rows [V, H], float16. tables: of positions. biases: those of the scores of the decoder [heads, N], by
    distance, and of the encoder; none where masks are all that is added. quality: figures of the check against the
    model in float32, through these graphs on the CPU. shorter: of smaller contexts, smallest first, because a step
    reads all rows of its cache.
    """

    version: int
    name: str
    context: int
    groups: int
    masked: float
    kv: str
    embedding: str
    tables: list[Table]
    graphs: list[StaticGraph]
    encoder: StaticEncoder | None = None
    biases: list[Table] = field(default_factory=list)
    compiled: list[Compiled] = field(default_factory=list)
    quality: dict[str, float] = field(default_factory=dict)
    shorter: list[Shorter] = field(default_factory=list)

    @property
    def by_context(self) -> dict[int, list[StaticGraph]]:
        """All graphs of steps, by the rows of their caches, fewest first."""
        return {each.context: each.graphs for each in self.shorter} | {self.context: self.graphs}

    @property
    def graph_paths(self) -> list[str]:
        """Of all graphs, in the order of `Compiled.paths`."""
        encoder = [] if self.encoder is None else [self.encoder.path]
        shorter = (path for each in self.shorter for graph in each.graphs for path in graph.paths)
        return [*(path for graph in self.graphs for path in graph.paths), *encoder, *shorter]


@dataclass(frozen=True)
class DeviceTarget:
    """Graphs for a device with memory of its own, of any size, as the bundle's own are: `decoder`, and `encoder` where
    there is one, are their paths in the bundle.

    activations: the type of floats, keys and values. weights: the kind of weights. quality: figures of the check
    against the model in float32, through graphs that the CPU's provider runs.
    """

    version: int
    name: str
    activations: str
    weights: str
    decoder: str
    encoder: str | None = None
    quality: dict[str, float] = field(default_factory=dict)


STATIC = [name for name in TARGETS if name != CUDA]  # whose graphs have fixed sizes: `Target`


def path_of(name: str) -> str:
    """Where a bundle has the target of this name."""
    return f"targets/{name}/target.json"


def target_for(bundle: Bundle, provider: str) -> str | None:
    """The name of the bundle's target that the provider runs; None where it has none."""
    provider = provider.partition(":")[0]  # without the number of a device
    return next((name for name, runs in TARGETS.items() if runs == provider and has_target(bundle, name)), None)


def has_target(bundle: Bundle, name: str) -> bool:
    """Whether the bundle has the target of this name."""
    path = path_of(name)
    return any(file.path == path for file in bundle.manifest.files) or bundle.path(path).is_file()


def read_device_target(bundle: Bundle, name: str) -> DeviceTarget:
    """As `read_target`."""
    path, target = _read(bundle, name, DeviceTarget)
    for file in (target.decoder, *([] if target.encoder is None else [target.encoder])):
        check_inside(bundle.root, file)
    if (target.encoder is None) != (bundle.manifest.encoder is None):
        raise BundleError(f"{path} does not go with the bundle's encoder; export the model again.")
    return target


T = TypeVar("T", Target, DeviceTarget)


def _read(bundle: Bundle, name: str, kind: type[T]) -> tuple[Path, T]:
    path = bundle.path(path_of(name))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise BundleError(f"{path} cannot be read ({e}); export or copy the bundle again.") from None
    target = typed(read_json(text, str(path)), kind, str(path))
    if target.version != TARGET_VERSION:
        raise BundleError(
            f"{path} is of version {target.version}, and this edge reads version {TARGET_VERSION}; upgrade edge, or "
            "export the model again."
        )
    return path, target


def read_target(bundle: Bundle, name: str) -> Target:
    """BundleError where it cannot be read, or is of a version that this edge does not know."""
    path, target = _read(bundle, name, Target)
    files = [*target.graph_paths, *(file for each in target.compiled for file in each.paths), target.embedding]
    tables, encoder = [*target.tables, *target.biases], target.encoder
    if encoder is not None:
        files += [] if encoder.embedding is None else [encoder.embedding]
        tables = [*tables, *encoder.tables]
    for file in (*files, *(table.path for table in tables)):
        check_inside(bundle.root, file)
    if any(not graphs or graphs[0].size != 1 for graphs in target.by_context.values()):
        raise BundleError(f"{path} names no graph for a step of one token; export the model again.")
    if len({len(graph.paths) for graphs in target.by_context.values() for graph in graphs} | {0}) != 2:
        raise BundleError(f"{path} names graphs without parts, or with more than others; export the model again.")
    if list(target.by_context) != sorted({each.context for each in target.shorter} | {target.context}):
        raise BundleError(f"{path} names contexts that do not grow; export the model again.")
    return target
