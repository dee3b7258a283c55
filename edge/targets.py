"""A bundle's descriptions of graphs for one kind of device: `targets/NAME/target.json`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, TypeVar

from edge.bundle import WEIGHTS, check_inside
from edge.errors import BundleError
from edge.typed_json import typed

if TYPE_CHECKING:
    from edge.bundle import Bundle

TARGET_VERSION = 1
CUDA = "cuda"
ACTIVATIONS = ("float16", "bfloat16", "float32")  # types of a device's floats
KV_TYPES = ("int16",)  # of the keys and values of graphs of fixed sizes
LONGEST = 1 << 20  # tokens of a cache of fixed size
LEAST_MASK = -1e9  # added to the score of what a token must not attend to
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
    """The cost of one run of a graph on any device, counted at export. Bytes that it moves, each once: of the weights,
    of the keys and values that it reads, and of its other inputs and its outputs; intermediate values are not counted.
    products: multiply-adds of matrix products and convolutions."""

    weights: int
    kv: int
    rest: int
    products: int

    @property
    def bytes(self) -> int:
        return self.weights + self.kv + self.rest

    def shortest_ms(self, soc: Soc) -> float | None:
        """Estimate the minimum time of a run: the bytes over the bandwidth. None if the bandwidth is unknown."""
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
    """Graphs of the same steps over a cache of fewer rows."""

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
        """Paths of all graphs, in the order of `Compiled.paths`."""
        encoder = [] if self.encoder is None else [self.encoder.path]
        shorter = (path for each in self.shorter for graph in each.graphs for path in graph.paths)
        return [*(path for graph in self.graphs for path in graph.paths), *encoder, *shorter]

    @property
    def files(self) -> list[str]:
        """Paths of all files that the target names."""
        encoder = self.encoder
        tables = [*self.tables, *self.biases, *([] if encoder is None else encoder.tables)]
        embeddings = [self.embedding, *([] if encoder is None or encoder.embedding is None else [encoder.embedding])]
        compiled = (path for each in self.compiled for path in each.paths)
        return [*self.graph_paths, *compiled, *embeddings, *(table.path for table in tables)]


@dataclass(frozen=True)
class DeviceTarget:
    """Graphs of dynamic sizes for a device with separate memory, such as a GPU: `decoder`, and `encoder` for an
    encoder-decoder, are their paths in the bundle.

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
    """Return the path of the target of this name in a bundle."""
    return f"targets/{name}/target.json"


def target_for(bundle: Bundle, provider: str) -> str | None:
    """Return the name of the bundle's target that the provider runs; None if it has none."""
    provider = provider.partition(":")[0]  # without the number of a device
    return next((name for name, runs in TARGETS.items() if runs == provider and has_target(bundle, name)), None)


def has_target(bundle: Bundle, name: str) -> bool:
    """True if the bundle has the target of this name."""
    return bundle.has(path_of(name))


def check_listed(bundle: Bundle, name: str) -> None:
    """Raise BundleError if a target names a file that the manifest does not list."""
    for file in [] if name == CUDA else read_target(bundle, name).files:
        bundle.file(file)


def read_device_target(bundle: Bundle, name: str) -> DeviceTarget:
    """Return the target of this name for a device such as a GPU; BundleError as for `read_target`."""
    path, target = _read(bundle, name, DeviceTarget)
    for file in (target.decoder, *([] if target.encoder is None else [target.encoder])):
        bundle.file(file)
    bundle.file(weights_of(target))
    if target.activations not in ACTIVATIONS:
        raise _unusable(path, f"activations are {target.activations[:60]!r}, and not {' or '.join(ACTIVATIONS)}")
    if (target.encoder is None) != (bundle.manifest.encoder is None):
        raise BundleError(f"{path} does not go with the bundle's encoder; export the model again.")
    return target


def weights_of(target: DeviceTarget) -> str:
    """The file with the weights of its graphs."""
    return str(PurePosixPath(target.decoder).with_name(WEIGHTS))


T = TypeVar("T", Target, DeviceTarget)


def _read(bundle: Bundle, name: str, kind: type[T]) -> tuple[str, T]:
    bundle.file(path_of(name))
    raw, path = bundle.read_json(path_of(name))
    target = typed(raw, kind, path)
    if target.version != TARGET_VERSION:
        raise BundleError(
            f"{path} is of version {target.version}, and this edge reads version {TARGET_VERSION}; upgrade edge, or "
            "export the model again."
        )
    if target.name != name:
        raise _unusable(path, f"name is {target.name[:60]!r}")
    return path, target


def _unusable(path: str, fault: str) -> BundleError:
    return BundleError(f"{path} cannot be used: {fault}; export the model again.")


def read_target(bundle: Bundle, name: str) -> Target:
    """Return the target of this name. BundleError if it cannot be read, is of a version that this edge does not know,
    or states sizes that its files do not have."""
    path, target = _read(bundle, name, Target)
    for file in target.files:
        check_inside(bundle.root, file)
    if any(not graphs or graphs[0].size != 1 for graphs in target.by_context.values()):
        raise BundleError(f"{path} names no graph for a step of one token; export the model again.")
    parts = {len(graph.paths) for graphs in target.by_context.values() for graph in graphs}
    if len(parts) != 1 or 0 in parts:
        raise BundleError(f"{path} names graphs without parts, or with more than others; export the model again.")
    if list(target.by_context) != sorted({each.context for each in target.shorter} | {target.context}):
        raise BundleError(f"{path} names contexts that do not grow; export the model again.")
    for fault in _faults(bundle, target):
        raise _unusable(path, fault)
    return target


def _faults(bundle: Bundle, target: Target) -> Iterator[str]:
    """Sizes that are none, or not those of the files that have them."""
    dims, encoder = bundle.manifest.dims, target.encoder
    if not 1 <= min(target.by_context) <= target.context <= min(LONGEST, bundle.manifest.context):
        yield f"context is {target.context}, and the bundle's is {bundle.manifest.context}"
    if not 1 <= target.groups <= dims.num_heads:
        yield f"groups is {target.groups}, and the model has {dims.num_heads} heads"
    if target.kv not in KV_TYPES:
        yield f"kv is {target.kv[:60]!r}, and not {' or '.join(KV_TYPES)}"
    if not LEAST_MASK <= target.masked < 0:
        yield f"masked is {target.masked}"
    for context, graphs in target.by_context.items():
        sizes = [graph.size for graph in graphs]
        if sizes != sorted(sizes) or sizes[-1] > LONGEST:
            yield f"the graphs' steps over a cache of {context} are of {str(sizes)[:100]} tokens"
        if any(graph.rows not in (1, graph.size) for graph in graphs):
            yield "a graph has logits of neither one row nor all"
    if any(len(each.paths) != len(target.graph_paths) for each in target.compiled):
        yield "what was compiled are not as many graphs as there are"
    embeddings = {target.embedding: dims.vocab_size * dims.hidden_size * 2}
    if (encoder is None) != (bundle.manifest.encoder is None):
        yield "it does not go with the bundle's encoder"
    elif encoder is not None:
        manifest = bundle.manifest
        assert manifest.encoder is not None
        if not 1 <= encoder.length <= manifest.encoder.max_length:
            yield f"the encoder's length is {encoder.length}, and the bundle's is {manifest.encoder.max_length}"
        if (encoder.embedding is None) != (manifest.speech is not None):
            yield "an embedding of its encoder is for text, and a text needs one"
        elif encoder.embedding is not None and encoder.embedding != target.embedding:
            bundle.file(encoder.embedding)
            row = dims.hidden_size * 2  # of a vocabulary that may be the encoder's alone
            embeddings[encoder.embedding] = max(1, bundle.size(encoder.embedding) // row) * row
    tables = [*target.tables, *target.biases, *([] if encoder is None else encoder.tables)]
    if target.biases and (len(target.biases) != 2 or encoder is None):
        yield f"biases are {len(target.biases)}, and not those of the decoder and its encoder"
    elif target.biases and target.biases[0].rows != dims.num_heads:
        yield f"biases are of {target.biases[0].rows} heads, and the decoder has {dims.num_heads}"
    for table in tables:
        if min(table.rows, table.columns) < 1:
            yield f"the table {table.input[:60]!r} has {table.rows} rows of {table.columns}"
    for table in target.tables:
        if table.rows < target.context:
            yield f"the table {table.input[:60]!r} has {table.rows} rows for {target.context} tokens"
    for file, size in [*embeddings.items(), *((table.path, table.rows * table.columns * 4) for table in tables)]:
        bundle.file(file)
        if bundle.size(file) != size:
            yield f"{file[:100]!r} has {bundle.size(file)} bytes where its sizes make {size}"
