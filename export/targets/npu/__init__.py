"""`edge export --target npu-qualcomm`: graphs of fixed sizes in integers."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from edge.bundle import WEIGHTS as WEIGHTS_FILE
from edge.bundle import BundleWriter, TensorFile
from edge.errors import ExportError, InputError
from edge.export.graph.weights import external
from edge.export.quantize.method import Options
from edge.export.targets.kind import Sample, Wanted, write_json
from edge.export.targets.npu.blocks import Blocks
from edge.export.targets.npu.compile import compile_for, socs_of
from edge.export.targets.npu.cost import cost_of, multiply_adds
from edge.export.targets.npu.graphs import DECODER, ENCODER, Shape, StaticModel
from edge.export.targets.npu.parts import parts_of
from edge.export.targets.npu.qdq import check_operators, quantize
from edge.export.targets.npu.ranges import Ranges, measure
from edge.runtime.memory.process import release_freed
from edge.targets import TARGET_VERSION, Cost, Shorter, StaticEncoder, StaticGraph, Table, Target

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint
    from edge.manifest import Manifest

NAME = "npu-qualcomm"
HELP = "Qualcomm's NPUs"

CONTEXT = 512  # rows of the cache: each step reads all of them
TEXT_CONTEXT = 128  # of an encoder-decoder for text, and tokens of its input; for sound it is what a window can need
WINDOWS = 12  # of the calibration text
KV = "int16"
WEIGHTS = INT8, INT4 = "int8", "int4"
VERIFY, CHUNK = 8, 64  # tokens of a step that verifies drafts, and of one that reads a prompt
PART = 3 * 2**30  # weights of a graph from which on it is cut: what is compiled addresses 4 GB
EXTERNAL = 1024  # bytes of a constant from which on all graphs share it
REFUSED = {
    "umt5": "biases the scores of each layer by itself",
    "longt5": "has an encoder that attends to near tokens alone",
    "t5gemma": "has an encoder with rotary positions",
    "t5gemma2": "has an encoder with rotary positions",
    "gemma3n_text": "has layers that share keys and values",
    "gemma4_text": "has layers that share keys and values, or heads of several sizes",
}


def check_wanted(wanted: Wanted, checkpoint: Checkpoint, context: int) -> None:
    """Refuse at once what cannot be made: the model's graphs are built, without its weights.

    Raises:
        InputError: a chip, the weights or the context is unknown or out of range.
        ExportError: no graph for NPUs can do what the model does.
    """
    weights = wanted.weights or INT8
    if weights not in WEIGHTS:
        raise InputError(f"There are no target weights {weights!r} for {wanted.name}; choose {' or '.join(WEIGHTS)}.")
    if wanted.activations is not None:
        raise InputError(f"{wanted.name} computes in integers; leave out --target-activations.")
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
    if both and weights != INT8:
        raise InputError(f"{checkpoint.name} is an encoder-decoder, whose --target-weights are int8.")
    if wanted.context is None and context < CHUNK:
        raise InputError(f"A target for NPUs needs a context of {CHUNK} tokens or more, and this bundle has {context}.")
    socs_of(wanted.socs)
    model = StaticModel(checkpoint, contexts[-1], empty=True, bias_apart=weights == INT4)
    for built in (model.build(Shape(1, 1, contexts[-1])), *([model.build_encoder()] if both else [])):
        check_operators(built.graph)


def _contexts(wanted: Wanted, text: bool, context: int) -> list[int]:
    """Rows of the cache, fewest first. text: of an encoder-decoder for text. context: the bundle's."""
    asked = [wanted.context] if isinstance(wanted.context, int) else wanted.context or ()
    return sorted(set(asked)) or [min(TEXT_CONTEXT if text else CONTEXT, context)]


def write_target(
    wanted: Wanted,
    checkpoint: Checkpoint,
    writer: BundleWriter,
    manifest: Manifest,
    samples: Callable[[], Sequence[Sample]],
    options: Options,
) -> None:
    """Write the graphs, their weights, the embedding and `target.json`."""
    progress = options.report
    folder = f"targets/{wanted.name}"
    both = manifest.encoder is not None
    text = manifest.speech is None
    *shorter, context = contexts = _contexts(wanted, both and text, manifest.context)
    blocks = wanted.weights == INT4
    model = StaticModel(checkpoint, context, bias_apart=blocks)
    sizes = [(1, 1), (VERIFY, VERIFY), *([] if both else [(CHUNK, 1)])]  # prompts of decoders with encoders are short
    shapes = [Shape(size, logits, rows) for rows in contexts for size, logits in sizes]
    (writer.staging / folder).mkdir(parents=True)
    read = samples()[: None if both or blocks else WINDOWS]  # weights in 4 bits take all that there is
    cut = [Sample(source if source is None or not text else source[:context], each[:context]) for source, each in read]
    found = measure(model, cut, writer.staging / folder, progress, blocks=blocks)
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

    with contextlib.closing(TensorFile(writer.staging / folder / WEIGHTS_FILE)) as shared:
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
    write_json(writer, dataclasses.replace(target, compiled=compiled))


def finish_target(target: Target, writer: BundleWriter, quality: dict[str, float]) -> None:
    """The graphs are those that the CPU ran; their figures are added."""
    write_json(writer, dataclasses.replace(target, quality=quality))


def _written(
    built: ir.Model, ranges: Ranges, shared: TensorFile, blocks: Mapping[str, Blocks] | None = None
) -> tuple[bytes, Cost]:
    """A graph in integers, and what a run of it costs."""
    products = multiply_adds(built.graph)
    model = quantize(built, ranges, blocks or {})
    cost = cost_of(model.graph, products)
    for value in model.graph.initializers.values():
        tensor = value.const_value
        assert tensor is not None
        if tensor.nbytes >= EXTERNAL:
            name, shape = str(tensor.name), tensor.numpy().shape
            span = shared.add_tensor(f"{model.graph.name}/{name}", np.frombuffer(tensor.tobytes(), np.uint8))
            value.const_value = external(name, span.offset, span.length, tensor.dtype, shape)  # all graphs' of a name
    shared.flush()
    return ir.to_proto(model).SerializeToString(), cost
