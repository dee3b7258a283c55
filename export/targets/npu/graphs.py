"""A model's steps at fixed sizes, in float32: what is calibrated and then quantized."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnxscript import GraphBuilder

from edge.errors import ExportError
from edge.export.facts.family import Heads
from edge.export.facts.tensors import HEAD
from edge.export.graph.blocks import Attention, Step
from edge.export.graph.cross import Reader
from edge.export.graph.families import find_family
from edge.export.graph.families.t5 import DecoderBias, EncoderBias
from edge.export.graph.stacks import Decoder, EncoderDecoder, TextStart
from edge.export.graph.step import FLOAT, INT32, add_output, configuration, remove_unused
from edge.export.graph.weights import StoredFloat
from edge.export.targets.npu.lowering import NPU
from edge.export.targets.npu.qdq import array_of
from edge.export.targets.npu.weights import NPUWeights, npu_shapes, npu_weights

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint
    from edge.export.graph.linear import Embedding
    from edge.export.graph.operators import Value

OPSET, IR_VERSION = 23, 11  # which have RMSNormalization, and integers of 16 bits
FRAMES = 2  # of features, for each that an encoder of sound makes
DECODER, ENCODER = "decoder", "encoder"


@dataclass(frozen=True)
class Shape:
    """The sizes of a graph: tokens of a step, rows of them that have logits, and rows of the cache."""

    size: int
    rows: int
    capacity: int


class StaticModel:
    """A checkpoint, for graphs of several shapes over one set of weights.

    context: the positions that it knows. source: the length of an encoder's input, in tokens, which a text is filled up
    to, or in frames. features [M, N]: the shape of its input where it hears sound. heads: of each layer's attention;
    `cross`: of each layer's attention to the encoder's output. groups: queries that read the same keys. embedding
    [V, H], source_embedding: what the host looks rows up in; None for sound. tables [P, W]: of positions, likewise, by
    the graph (`decoder` or `encoder`) and the inputs that take their rows, once a graph is built. biases: [heads,
    context] of the distances 0 and up between a token and those before it, in the decoder, and [heads, 2 R + 1] of the
    distances from -R to R, key minus query, in the encoder; None where scores have none.

    empty: leave out the weights, to see which graphs there will be. bias_apart: add a product's bias after it, as those
    with weights in 4 bits need.

    Raises:
        ExportError: the model's type is of no known family, or no graph for NPUs can do what it asks for.
    """

    def __init__(self, checkpoint: Checkpoint, context: int, *, empty: bool = False, bias_apart: bool = False) -> None:
        self._family = find_family(str(checkpoint.config.get("model_type")))[1]
        self._config, self.context, self._bias_apart = configuration(checkpoint.config), context, bias_apart
        matrices = npu_shapes(checkpoint) if empty else npu_weights(checkpoint)
        both = bool(checkpoint.config.get("is_encoder_decoder"))
        if HEAD in matrices and not both:  # the rotated head has the final norm in it, and is the embedding no more
            self._config.tie_word_embeddings = False
        self._weights = NPUWeights(checkpoint, matrices)
        decoder, whole = self._modules()
        self.heads: list[Heads] = [each.heads for each in decoder.modules() if isinstance(each, Attention)]
        self.cross = [Heads(m.heads, m.heads, m.dim) for m in decoder.modules() if isinstance(m, Reader)]
        if len({heads.query // heads.key_value for heads in self.heads}) > 1:
            raise ExportError(
                f"The layers of {checkpoint.name} share keys differently, and a graph for NPUs has one mask."
            )
        self.groups = self.heads[0].query // self.heads[0].key_value
        self.embedding = _rows(decoder.start)
        self.hidden, self.vocab = self.embedding.shape[1], decoder.lm_head.stored.rows
        self.features: tuple[int, int] | None = None
        self.source, self.source_embedding = context, None
        if whole is not None and whole.bins is not None:
            self.source = whole.encoder_dims.max_length
            self.features = whole.bins, self.source * FRAMES
        elif whole is not None:
            self.source_embedding = _rows(whole.encoder.start)
        self.biases = None if whole is None else _biases(whole, checkpoint.name)
        self.tables: dict[str, dict[str, NDArray[np.float32]]] = {}

    def _modules(self) -> tuple[Decoder, EncoderDecoder | None]:
        """The modules of the decoder, which serve one graph, and the whole of an encoder-decoder."""
        made = self._family.build(self._config, self._weights, self.context)
        return (made.decoder, made) if isinstance(made, EncoderDecoder) else (made, None)

    def build(self, shape: Shape) -> ir.Model:
        """The decoder's step in float32. Inputs: rows [1, S, H] of the embedding, those [1, S, W] of tables of
        positions, mask [1, 1 or heads, groups * S, C + S], which is added to the scores, logit_rows [R] int32, and
        past.{i}.key [1, heads, dim, C] and past.{i}.value [1, heads, C, dim]; with an encoder of T tokens or frames
        also cross_mask [1, 1, 1, T], cross.{i}.key [1, heads, dim, T] and cross.{i}.value [1, heads, T, dim]. Outputs:
        logits [1, R, V] and new.{i}.key, new.{i}.value, each [1, S, heads, dim]."""
        size, capacity = shape.size, shape.capacity
        builder = GraphBuilder(ir.Graph([], [], nodes=[], opset_imports={"": OPSET}, name=DECODER))
        rows = builder.input("rows", FLOAT, [1, size, self.hidden])
        mask = builder.input("mask", FLOAT, [1, self.mask_heads, self.groups * size, capacity + size])
        logit_rows = builder.input("logit_rows", INT32, [shape.rows])
        source_mask = builder.input("cross_mask", FLOAT, [1, 1, 1, self.source]) if self.cross else None
        op = NPU(builder, size, source_mask, bias_apart=self._bias_apart)
        step = Step(rows, rows, rows, {}, attention_bias=mask)  # positions are the host's, and lengths the mask's
        step.past = dict(enumerate(self._cache_inputs(builder, "past", self.heads, capacity)))
        step.cross = self._cache_inputs(builder, "cross", self.cross, self.source)
        add_output(builder, self._modules()[0](op, rows, logit_rows, step), "logits", [1, shape.rows, self.vocab])
        for i, heads in enumerate(self.heads):
            for value, part in zip(step.present[i], ("key", "value"), strict=True):
                add_output(builder, value, f"new.{i}.{part}", [1, size, heads.key_value, heads.dim])
        return self._finished(DECODER, builder, op)

    def build_encoder(self) -> ir.Model:
        """The encoder's run in float32. Inputs: of text rows [1, T, H] of the embedding, those of tables of positions,
        and mask [1, 1 or heads, T, T]; of sound features [1, M, N]. Outputs: cross.{i}.key, cross.{i}.value, each
        [1, T, heads, dim]."""
        whole, mask = self._modules()[1], None
        assert whole is not None
        builder = GraphBuilder(ir.Graph([], [], nodes=[], opset_imports={"": OPSET}, name=ENCODER))
        if self.features is not None:
            given = builder.input("features", FLOAT, [1, *self.features])
        else:
            assert self.source_embedding is not None
            given = builder.input("rows", FLOAT, [1, self.source, self.source_embedding.shape[1]])
            mask = builder.input("mask", FLOAT, [1, self.mask_heads, self.source, self.source])
        op = NPU(builder, self.source, mask)
        whole.encoder.bias = None  # which is in the mask
        for i, (pair, heads) in enumerate(zip(whole.encoder(op, given), self.cross, strict=True)):
            for value, part in zip(pair, ("key", "value"), strict=True):
                add_output(builder, value, f"cross.{i}.{part}", [1, self.source, heads.key_value, heads.dim])
        return self._finished(ENCODER, builder, op)

    @property
    def mask_heads(self) -> int:
        """The heads of a mask: 1 for all heads together, or the number of heads."""
        return 1 if self.biases is None else len(self.biases[0])

    @staticmethod
    def _cache_inputs(builder: GraphBuilder, name: str, layers: list[Heads], rows: int) -> list[tuple[Value, Value]]:
        return [
            (
                builder.input(f"{name}.{i}.key", FLOAT, [1, heads.key_value, heads.dim, rows]),
                builder.input(f"{name}.{i}.value", FLOAT, [1, heads.key_value, rows, heads.dim]),
            )
            for i, heads in enumerate(layers)
        ]

    def _finished(self, name: str, builder: GraphBuilder, op: NPU) -> ir.Model:
        graph = builder.graph
        self.tables[name] = {table: rows[: self.context] for table, rows in op.tables.items()}
        for node in graph.all_nodes():
            node.metadata_props.clear()
        _fold_transposes(graph)
        remove_unused(graph)
        return ir.Model(graph, ir_version=IR_VERSION, producer_name="edge")


def _rows(start: object) -> NDArray[np.float32]:
    """The embedding that a start looks rows up in."""
    assert isinstance(start, TextStart)
    embedding: Embedding = start.embedding
    assert isinstance(embedding.stored, StoredFloat), "matrices are quantized once the graph is whole"
    rows: NDArray[np.float32] = embedding.stored.weight.numpy()
    return rows


def _biases(whole: EncoderDecoder, name: str) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    """The biases of the decoder's and of the encoder's scores; None where there are none."""
    decoder, encoder = whole.bias, whole.encoder.bias
    if decoder is None and encoder is None:
        return None
    if type(decoder) is not DecoderBias or type(encoder) is not EncoderBias:
        raise ExportError(f"{name} biases its attention scores otherwise than T5, which no graph for NPUs does yet.")
    return array_of(decoder.table), array_of(encoder.table)


def _fold_transposes(graph: ir.Graph) -> None:
    """Transpose weights now instead of in every step."""
    for node in list(graph):
        source = node.inputs[0] if node.inputs else None
        if node.op_type != "Transpose" or source is None or source.const_value is None:
            continue
        name = f"{source.name}.transposed"
        turned = ir.val(name, const_value=ir.Tensor(np.ascontiguousarray(source.const_value.numpy().T), name=name))
        graph.register_initializer(turned)
        node.outputs[0].replace_all_uses_with(turned)
        graph.remove(node, safe=True)
