"""`edge export --target`: a model's graphs for one kind of device, written next to the plain ones of a bundle."""

from __future__ import annotations

import dataclasses
import functools
import gc
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from edge.bundle import PAGE, Bundle, BundleWriter
from edge.errors import ExportError, InputError
from edge.export import check
from edge.export.npu.blocks import Blocks
from edge.export.npu.compile import compile_for, socs_of
from edge.export.npu.cost import cost_of, multiply_adds
from edge.export.npu.graphs import DECODER, ENCODER, Shape, StaticModel
from edge.export.npu.parts import parts_of
from edge.export.npu.qdq import check_operators, quantize
from edge.export.npu.ranges import Pair, Ranges, measure, measure_pairs
from edge.export.quantize.base import Progress
from edge.runtime.check.golden import Golden, record_form
from edge.runtime.check.perplexity import Agreement
from edge.runtime.engine.variant import Variant
from edge.runtime.memory.process import release_freed
from edge.runtime.providers import open_provider
from edge.runtime.static.engine import StaticEngine
from edge.targets import TARGET_VERSION, TARGETS, Cost, Shorter, StaticEncoder, StaticGraph, Table, Target, path_of

if TYPE_CHECKING:
    from edge.export.checkpoint.base import Checkpoint
    from edge.manifest import Manifest

CONTEXT = 512  # rows of the cache: each step reads all of them
PAIR_CONTEXT = 128  # of an encoder-decoder for text, and tokens of its input; for sound it is what a window can need
WINDOWS = 12  # of the calibration text
KV = "int16"
WEIGHTS = INT8, INT4 = "int8", "int4"
VERIFY, CHUNK = 8, 64  # tokens of a step that verifies drafts, and of one that reads a prompt
PART = 3 * 2**30  # weights of a graph from which on it is cut: what is compiled addresses 4 GB
EXTERNAL = 1024  # bytes of a constant from which on all graphs share it
REFUSED = {
    "umt5": "biases the scores of each layer by itself",
    "t5gemma": "has an encoder with rotary positions",
}
MAX_KL, MIN_TOP1 = 0.5, 0.5  # what no sound target comes near


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What a user asks for. name: of the target. context: one or several; None for the default. socs: chips to compile
    for. weights: one of `WEIGHTS`."""

    name: str
    context: int | Sequence[int] | None = None
    socs: Sequence[str] = ()
    weights: str = INT8


def check_wanted(wanted: Wanted, checkpoint: Checkpoint, context: int) -> None:
    """Refuse at once what cannot be made: the model's graphs are built, without its weights.

    Raises:
        InputError: the target, a chip, the weights or the context is unknown or out of range.
        ExportError: no graph for NPUs can do what the model does.
    """
    if wanted.name not in TARGETS:
        raise InputError(f"There is no target {wanted.name!r}; choose one of {', '.join(TARGETS)}.")
    if wanted.weights not in WEIGHTS:
        raise InputError(f"There are no target weights {wanted.weights!r}; choose one of {', '.join(WEIGHTS)}.")
    kind = str(checkpoint.config.get("model_type"))
    if kind in REFUSED:
        raise ExportError(f"{checkpoint.name} {REFUSED[kind]}, which no graph for NPUs does yet; leave out --target.")
    both = bool(checkpoint.config.get("is_encoder_decoder"))
    contexts = _contexts(wanted, both and "num_mel_bins" not in checkpoint.config, context)
    for asked in () if wanted.context is None else contexts:
        if not CHUNK <= asked <= context:
            raise InputError(f"--target-context must be between {CHUNK} and {context}, the bundle's, not {asked}.")
    if both and len(contexts) > 1:
        raise InputError(f"{checkpoint.name} is an encoder-decoder, whose graphs have one --target-context; name one.")
    if both and wanted.weights != INT8:
        raise InputError(f"{checkpoint.name} is an encoder-decoder, whose --target-weights are int8.")
    if wanted.context is None and context < CHUNK:
        raise InputError(f"A target for NPUs needs a context of {CHUNK} tokens or more, and this bundle has {context}.")
    socs_of(wanted.socs)
    model = StaticModel(checkpoint, contexts[-1], empty=True, bias_apart=wanted.weights == INT4)
    for built in (model.build(Shape(1, 1, contexts[-1])), *([model.build_encoder()] if both else [])):
        check_operators(built.graph)


def _contexts(wanted: Wanted, pairs: bool, context: int) -> list[int]:
    """Rows of the cache, fewest first. pairs: of an encoder-decoder for text. context: the bundle's."""
    asked = [wanted.context] if isinstance(wanted.context, int) else wanted.context or ()
    return sorted(set(asked)) or [min(PAIR_CONTEXT if pairs else CONTEXT, context)]


def write_target(
    wanted: Wanted,
    checkpoint: Checkpoint,
    writer: BundleWriter,
    manifest: Manifest,
    material: NDArray[np.int64] | Sequence[Pair],
    progress: Progress,
) -> None:
    """Write the graphs, their weights, the embedding and `target.json`. material: `windows` [W, S] of the calibration
    text, or an encoder-decoder's inputs and what it makes of them."""
    folder = f"targets/{wanted.name}"
    both = manifest.encoder is not None
    text = manifest.speech is None
    *shorter, context = contexts = _contexts(wanted, both and text, manifest.context)
    blocks = wanted.weights == INT4
    model = StaticModel(checkpoint, context, bias_apart=blocks)
    sizes = [(1, 1), (VERIFY, VERIFY), *([] if both else [(CHUNK, 1)])]  # prompts of decoders with encoders are short
    shapes = [Shape(size, logits, rows) for rows in contexts for size, logits in sizes]
    (writer.staging / folder).mkdir(parents=True)
    if both:
        fitting = [(source[:context] if text else source, answer[:context]) for source, answer in material]
        found = measure_pairs(model, fitting, writer.staging / folder, progress)
    else:
        windows = np.asarray(material)[: None if blocks else WINDOWS]  # weights in 4 bits take all that there is
        found = measure(model, windows, writer.staging / folder, progress, blocks=blocks)
    release_freed()
    graphs: dict[int, list[StaticGraph]] = {rows: [] for rows in contexts}
    encoder: StaticEncoder | None = None

    def table(name: str, rows: NDArray[np.float32], of: str = "") -> Table:
        made = Table(name, f"{folder}/{of}{name}.bin", *rows.shape)
        writer.write_file(made.path, np.ascontiguousarray(rows, np.float32).tobytes())
        return made

    def embedding(rows: NDArray[np.float32], name: str) -> str:
        writer.write_file(f"{folder}/{name}.bin", rows.astype(np.float16).tobytes())
        return f"{folder}/{name}.bin"

    with (writer.staging / folder / "weights.bin").open("wb") as weights:
        shared = _SharedWeights(weights)
        for i, shape in enumerate(shapes):
            progress(i, len(shapes), "writing the graphs of the target")
            suffix = "" if shape.capacity == context else f"-of-{shape.capacity}"
            parts = parts_of(functools.partial(model.build, shape), PART)
            paths, costs = [], []
            for number, part in enumerate(parts, 1):
                content, cost = _written(part, found.decoder, shared, found.blocks)
                costs.append(cost)
                paths.append(f"{folder}/step-{shape.size}{suffix}{f'-part-{number}' if len(parts) > 1 else ''}.onnx")
                writer.write_file(paths[-1], content)
            cost = Cost(*map(sum, zip(*map(dataclasses.astuple, costs), strict=True)))
            graphs[shape.capacity].append(StaticGraph(shape.size, shape.rows, paths, cost))
        rows = embedding(model.embedding, "embedding")
        if both:
            path, given = f"{folder}/encoder.onnx", model.source_embedding
            content, cost = _written(model.build_encoder(), found.encoder, shared)
            writer.write_file(path, content)
            same = given is not None and np.array_equal(given, model.embedding)
            source = rows if same else None if given is None else embedding(given, "encoder-embedding")
            tables = [table(name, values, "encoder-") for name, values in model.tables[ENCODER].items()]
            encoder = StaticEncoder(path, model.source, source, tables, cost)
    tables = [table(name, values) for name, values in model.tables[DECODER].items()]
    biases = [table(f"bias-{i}", values) for i, values in enumerate(model.biases or ())]
    target = Target(
        TARGET_VERSION, wanted.name, context, model.groups, found.masked, KV, rows, tables, graphs[context], encoder,
        biases, shorter=[Shorter(each, graphs[each]) for each in shorter],
    )  # fmt: skip
    del model
    gc.collect()
    release_freed()
    compiled = []
    for i, soc in enumerate(socs_of(wanted.socs)):
        progress(i, len(wanted.socs), f"compiling for {soc.name}")
        compiled.append(compile_for(soc, target, writer.staging))
    _write(writer, dataclasses.replace(target, compiled=compiled))


def check_target(
    name: str,
    writer: BundleWriter,
    manifest: Manifest,
    compare: Callable[[StaticEngine], Agreement] | None,
    golden: Golden,
) -> Golden:
    """Compare the target's graphs, on the CPU, with the model in float32, and put the figures into `target.json`.
    Returns the golden answers, with what these graphs say along them where they have room for all.

    Raises:
        ExportError: they do not answer as the model does.
    """
    engine = StaticEngine(Bundle(writer.staging, manifest), Variant(target=name), open_provider("cpu"))
    if compare is not None:
        found = compare(engine)
        if not (found.kl_mean <= MAX_KL and found.top1 >= MIN_TOP1):
            raise ExportError(
                f"The graphs of {manifest.name} for {name} do not answer as the model in float32 does (mean KL "
                f"divergence {found.kl_mean:.3g}, top-1 agreement {found.top1:.1%}), so nothing was written; export it "
                "without --target, and report it."
            )
        _write(writer, dataclasses.replace(engine.target, quality=check.quality(found)))
    longest = max(max(len(case.prompt_ids) + len(case.greedy_ids), len(case.source_ids)) for case in golden.cases)
    if longest > engine.target.context:
        return golden
    return dataclasses.replace(golden, forms=[*golden.forms, record_form(engine, golden, name)])


def _write(writer: BundleWriter, target: Target) -> None:
    writer.write_file(path_of(target.name), json.dumps(dataclasses.asdict(target), indent=1) + "\n")


class _SharedWeights:
    """A file of constants, each written once for all graphs of one name."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._spans: dict[tuple[str | None, str], tuple[int, int]] = {}

    def external(self, graph: str | None, tensor: ir.TensorProtocol) -> ir.ExternalTensor:
        name = tensor.name
        assert name is not None
        if (graph, name) not in self._spans:
            start = -(-self._file.tell() // PAGE) * PAGE
            self._file.write(b"\0" * (start - self._file.tell()))
            self._spans[graph, name] = start, self._file.write(tensor.tobytes())
        start, length = self._spans[graph, name]
        self._file.flush()
        return ir.ExternalTensor(
            Path(self._file.name).name, start, length, tensor.dtype, shape=ir.Shape(tensor.numpy().shape), name=name
        )


def _written(
    built: ir.Model, ranges: Ranges, shared: _SharedWeights, blocks: Mapping[str, Blocks] | None = None
) -> tuple[bytes, Cost]:
    """A graph in integers, and what a run of it costs."""
    products = multiply_adds(built.graph)
    model = quantize(built, ranges, blocks or {})
    cost = cost_of(model.graph, products)
    for value in model.graph.initializers.values():
        tensor = value.const_value
        assert tensor is not None
        if tensor.nbytes >= EXTERNAL:
            value.const_value = shared.external(model.graph.name, tensor)
    return ir.to_proto(model).SerializeToString(), cost
