"""`edge export --target cuda`: graphs for GPUs with CUDA, over float16 or bfloat16.

On the way a second form of them is written, without the operators that the CPU's provider does not have, over the same
weights: through that one they are checked, and it is left out of the bundle.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
from numpy.typing import NDArray
from onnxscript import GraphBuilder

from edge.bundle import WEIGHTS, BundleWriter, TensorFile, Tensors, TensorSpan
from edge.errors import ExportError, InputError
from edge.export.facts.tensors import Weight
from edge.export.graph.caches import decoder_kv, layouts
from edge.export.graph.encoder import encoder_graph
from edge.export.graph.families import find_family
from edge.export.graph.stacks import EncoderDecoder
from edge.export.graph.step import IR_VERSION, configuration, remove_unused, step_graph
from edge.export.manifest.written import RecordedWeights
from edge.export.quantize.method import Options
from edge.export.targets.cuda.lowering import CUDA
from edge.export.targets.cuda.weights import FLOAT16, INT4, KINDS, CUDAWeights, cuda_shapes, cuda_weights
from edge.export.targets.kind import Sample, Wanted, write_json
from edge.runtime.memory.process import release_freed
from edge.targets import TARGET_VERSION, DeviceTarget

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint
    from edge.manifest import Manifest

NAME = "cuda"
HELP = "GPUs with CUDA"

TYPES = {"float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}
CHECKED = "checked-"  # before the names of files that are there for the check alone
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
        InputError: an option is unknown, or has no place.
        ExportError: no graph for CUDA can do what the model does.
    """
    both = bool(checkpoint.config.get("is_encoder_decoder"))
    model_type = str(checkpoint.config.get("model_type"))
    if model_type in REFUSED:
        raise ExportError(
            f"{checkpoint.name} {REFUSED[model_type]}, which no graph for CUDA does yet; leave out --target."
        )
    if wanted.weights not in (None, *KINDS):
        raise InputError(
            f"There are no target weights {wanted.weights!r} for cuda; choose {', '.join(KINDS[:-1])} or {KINDS[-1]}."
        )
    if both and wanted.weights not in (None, FLOAT16):
        raise InputError(f"{checkpoint.name} is an encoder-decoder, whose --target-weights for cuda are {FLOAT16}.")
    if wanted.activations not in (None, *TYPES):
        raise InputError(f"There are no activations in {wanted.activations!r}; choose {' or '.join(TYPES)}.")
    if wanted.context is not None:
        raise InputError("The graphs for cuda take the bundle's whole context; leave out --target-context.")
    if wanted.socs:
        raise InputError("The graphs for cuda run on any of its GPUs and are compiled for none; leave out --soc.")
    CUDAModel(checkpoint, context, cuda_shapes(checkpoint), _Nowhere(), TYPES[_activations(wanted)]).build()


def _activations(wanted: Wanted) -> str:
    return wanted.activations or "float16"


def _weights(wanted: Wanted, both: bool) -> str:
    return wanted.weights or (FLOAT16 if both else INT4)


def write_target(
    wanted: Wanted,
    checkpoint: Checkpoint,
    writer: BundleWriter,
    manifest: Manifest,
    samples: Callable[[], Sequence[Sample]],
    options: Options,
) -> None:
    """Write the graphs in both forms, their weights and `target.json`."""
    folder, both = f"targets/{wanted.name}", manifest.encoder is not None
    kind, activations = _weights(wanted, both), _activations(wanted)
    (writer.staging / folder).mkdir(parents=True)
    weights = RecordedWeights(cuda_weights(checkpoint, kind, options), options.report, "writing weights of the target")
    names = ["decoder", *(["encoder"] if both else [])]
    with writer.writing(), contextlib.closing(TensorFile(writer.staging / folder / WEIGHTS)) as file:
        model = CUDAModel(checkpoint, manifest.context, weights, file, TYPES[activations])
        for before, graphs in (("", model.build()), (CHECKED, model.build(substitutes=True))):
            for name, graph in zip(names, graphs, strict=True):
                writer.write_file(f"{folder}/{before}{name}.onnx", written(graph))
    del weights, model
    release_freed()
    paths = {name: f"{folder}/{CHECKED}{name}.onnx" for name in names}
    checked = DeviceTarget(
        TARGET_VERSION, wanted.name, _checked(activations), kind, paths["decoder"], paths.get("encoder")
    )
    write_json(writer, checked)


def written(graph: ir.Graph) -> bytes:
    """The bytes of a graph's file."""
    content: bytes = ir.to_proto(ir.Model(graph, ir_version=IR_VERSION, producer_name="edge")).SerializeToString()
    return content


def finish_target(target: DeviceTarget, writer: BundleWriter, quality: dict[str, float]) -> None:
    """Remove the form of the graphs that was only for the check, and write `target.json`."""
    for path in (writer.staging / f"targets/{target.name}").glob(f"{CHECKED}*"):
        path.unlink()
    activations = next(name for name in TYPES if _checked(name) == target.activations)
    encoder = None if target.encoder is None else target.encoder.replace(CHECKED, "")
    decoder = target.decoder.replace(CHECKED, "")
    whole = dataclasses.replace(target, decoder=decoder, encoder=encoder, activations=activations, quality=quality)
    write_json(writer, whole)


def _checked(activations: str) -> str:
    """The type in which graphs are checked: the CPU's provider has nothing for bfloat16."""
    return "float16" if activations == "float16" else "float32"


class _Nowhere:
    """Tensor writer that discards its tensors."""

    def add_tensor(self, name: str, array: NDArray[Any]) -> TensorSpan:
        return TensorSpan(0, array.nbytes)


class CUDAModel:
    """A model whose graphs for CUDA are built over one file of weights."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        context: int,
        weights: Mapping[str, Weight],
        file: Tensors,
        dtype: ir.DataType,
    ) -> None:
        self._family = find_family(str(checkpoint.config.get("model_type")))[1]
        self._config, self._context, self._dtype = configuration(checkpoint.config), context, dtype
        self._store = CUDAWeights(checkpoint, weights, file, dtype)

    def build(self, *, substitutes: bool = False) -> list[ir.Graph]:
        """The decoder's graph, and the encoder's where there is one."""
        float32 = substitutes and self._dtype == ir.DataType.BFLOAT16
        dtype = ir.DataType.FLOAT if float32 else self._dtype
        lower = functools.partial(CUDA, dtype=dtype, substitutes=substitutes)
        made = self._family.build(self._config, self._store, self._context)
        self.decoder = made.decoder if isinstance(made, EncoderDecoder) else made
        if isinstance(made, EncoderDecoder):
            kv, cross = layouts(made)
            step = functools.partial(step_graph, cross=cross, bias=made.bias)
            graphs = [
                step(made.decoder, kv, made.dims.vocab_size, chooses=True, lower=lower),
                encoder_graph(made, cross, False, lower),
            ]
        else:
            graphs = [step_graph(made, decoder_kv(made), self._config.vocab_size, chooses=True, lower=lower)]
        return [self._finished(builder, float32=float32) for builder in graphs]

    @staticmethod
    def _finished(builder: GraphBuilder, *, float32: bool) -> ir.Graph:
        graph = builder.graph
        for node in graph.all_nodes():
            node.metadata_props.clear()
        remove_unused(graph)
        for value in [value for value in graph.inputs if not value.uses()]:  # positions, which attention counts
            graph.inputs.remove(value)
        if float32:
            _widen(graph)
        return graph


def _widen(graph: ir.Graph) -> None:
    """Let a graph read its stored floats as float32."""
    for node in graph:
        for made in node.outputs:
            if not made.is_graph_output():
                made.type = None  # inferred from what is stored
    for name, value in list(graph.initializers.items()):
        if value.dtype not in TYPES.values():
            continue
        cast = ir.node("Cast", [value], {"to": int(ir.DataType.FLOAT)}, name=f"{name}.float32")
        cast.outputs[0].name, cast.outputs[0].type = f"{name}.float32", ir.TensorType(ir.DataType.FLOAT)
        for user, index in value.uses():
            user.replace_input_with(index, cast.outputs[0])
        cast.replace_input_with(0, value)
        graph.insert_before(graph[0], cast)
