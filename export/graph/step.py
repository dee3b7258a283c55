"""The graph of one decoder step, as docs/bundle-format.md describes it, and what building any graph takes."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike, NDArray
from onnxscript import GraphBuilder, OpBuilder
from transformers import AutoConfig

from edge.bundle import BundleWriter
from edge.errors import ExportError
from edge.export.graph.blocks import Step
from edge.export.graph.linear import Value, scalar
from edge.manifest import KVLayer, KVLayout

OPSET = 21
IR_VERSION = 10  # of the ONNX file format, as opset 21 came with
DECODER = "graphs/decoder.onnx"
BLOCK = 256  # logits that the search for the largest one looks at together

FLOAT, INT32, INT64 = ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.INT64
Shape = list[int | str | None]


class ModelSource(Protocol):
    """What of a checkpoint a graph needs beside its quantized matrices."""

    config: dict[str, Any]

    def read(self, name: str) -> NDArray[np.float32]: ...


class StepModel(Protocol):
    """A decoder as a module: the logits [1, R, V] of `logit_rows`; what it leaves in the caches stands in the step."""

    def __call__(self, op: OpBuilder, input_ids: Value, logit_rows: Value, step: Step) -> Value: ...


class ScoresBias(Protocol):
    """Adds a family's own bias to the one that the host gives, [1, 1, S, T]; returns [1, H, S, T].

    keys: the positions [T] of the cache's rows.
    """

    def __call__(self, op: OpBuilder, step: Step, keys: Value, given: Value) -> Value: ...


def configuration(raw: dict[str, Any]) -> Any:
    """transformers' configuration object, which knows the defaults and both spellings of rope settings."""
    try:
        config = AutoConfig.for_model(**raw)
    except Exception as e:  # of any class: each model's configuration checks itself in its own way
        reason = " ".join(str(e).split()).rstrip(".")
        raise ExportError(f"transformers does not accept the model's configuration: {reason}.") from None
    if raw.get("tie_word_embeddings") is False:
        config.tie_word_embeddings = False  # T5's class says True whatever it is given
    return config


def new_graph(name: str) -> GraphBuilder:
    """A builder of an empty graph."""
    return GraphBuilder(ir.Graph([], [], nodes=[], opset_imports={"": OPSET, "com.microsoft": 1}, name=name))


def add_output(
    builder: GraphBuilder, value: ir.Value, name: str, shape: Shape, dtype: ir.DataType = FLOAT
) -> None:
    """Make `value` an output of the graph."""
    value.type, value.shape = ir.TensorType(dtype), ir.Shape(shape)
    builder.add_output(value, name)


def write_graph(writer: BundleWriter, path: str, builder: GraphBuilder) -> None:
    """Write a finished graph into the bundle."""
    write_model(writer, path, builder.graph)


def write_model(writer: BundleWriter, path: str, graph: ir.Graph, ir_version: int = IR_VERSION) -> None:
    """Write a graph, or a part of one, into the bundle."""
    for node in graph:
        node.metadata_props.clear()  # the modules' names stay in the nodes' names
    model = ir.Model(graph, ir_version=ir_version, producer_name="edge")
    writer.write_file(path, ir.to_proto(model).SerializeToString())


def add_constant(graph: ir.Graph, name: str, values: ArrayLike, dtype: type = np.int64) -> ir.Value:
    """An initializer of a graph that was built."""
    array: NDArray[Any] = np.array(values, dtype)
    tensor = ir.tensor(array, name=name)
    kind = ir.TensorType(tensor.dtype)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=kind, const_value=tensor)
    graph.register_initializer(value)
    return value


def cut_names(layer: int, part: str) -> tuple[str, str]:
    """What the stream behind a layer's "attention" or "feed_forward" is called: x, and what is added to it."""
    return f"layer.{layer}.{part}.x", f"layer.{layer}.{part}.added"


def _name_cuts(step: Step) -> None:
    """Name the values of the residual stream between the blocks, so that the graph can be cut there."""
    for i, stream in enumerate(step.cuts):
        names = cut_names(i // 2, "feed_forward" if i % 2 else "attention")
        for value, name in zip((stream.x, stream.added), names, strict=True):
            if value is not None:
                value.name, value.type = name, ir.TensorType(FLOAT)


def step_graph(
    decoder: StepModel,
    kv: KVLayout,
    vocab_size: int,
    *,
    cross: KVLayout | None = None,
    turned: bool = False,
    bias: ScoresBias | None = None,
    chooses: bool = False,
) -> GraphBuilder:
    """The graph of one step.

    cross: the encoder's keys and values, of an encoder-decoder; its steps may be trees. turned: its values are
    transposed. bias: the family's own bias. chooses: it says which tokens are the likeliest as well.
    """
    builder = new_graph("decoder")
    input_ids = builder.input("input_ids", INT64, [1, "S"])
    step = Step(
        position_ids=builder.input("position_ids", INT64, [1, "S"]),
        seqlens_k=builder.input("seqlens_k", INT32, [1]),
        total_sequence_length=builder.input("total_sequence_length", INT32, []),
        past=[],
    )
    logit_rows = builder.input("logit_rows", INT64, ["R"])
    shapes: list[Shape] = [[1, layer.heads, "C", layer.head_dim] for layer in kv.layers]
    for i, shape in enumerate(shapes):
        key, value = (builder.input(f"past.{i}.{part}", FLOAT, shape) for part in ("key", "value"))
        step.past.append((key, value))
    if cross is not None:
        for i, layer in enumerate(cross.layers):
            parts = zip(("key", "value"), cross_shapes(layer, turned), strict=True)
            key, value = (builder.input(f"cross.{i}.{part}", FLOAT, shape) for part, shape in parts)
            step.cross.append((key, value))
        step.attention_bias = _scores_bias(builder, step, bias)
    logits = decoder(builder.op, input_ids, logit_rows, step)
    _name_cuts(step)
    add_output(builder, logits, "logits", [1, "R", vocab_size])
    if chooses:
        add_output(builder, likeliest(builder.op, logits, vocab_size), "tokens", [1, "R"], INT64)
    for i, shape in enumerate(shapes):
        for value, part in zip(step.present[i], ("key", "value"), strict=True):
            add_output(builder, value, f"present.{i}.{part}", shape)
    return builder


def block_size(vocab_size: int) -> int:
    """Logits of a block that `likeliest` looks at together: the size next to `BLOCK` that divides the vocabulary, or
    `BLOCK` itself where there is none."""
    sizes = [size for size in range(BLOCK // 4, 4 * BLOCK + 1) if vocab_size % size == 0]
    return min(sizes, key=lambda size: abs(size - BLOCK), default=BLOCK)


def likeliest(op: OpBuilder, logits: Value, vocab_size: int) -> Value:
    """The token with the largest logit of each row, the first of equals: [1, R, V] to [1, R].

    First the block with the largest logit, then the place in it. ArgMax over a whole row takes 33 us for 49,152 logits
    and 167 for 262,144 (onnxruntime 1.31, two threads), this 8 and 14, because the search for the largest value alone
    is vectorized and runs in all threads. Where blocks do not divide a vocabulary its logits
    are filled up, which copies them, whoever reads them.
    """
    block = block_size(vocab_size)
    missing = -vocab_size % block
    if missing:
        behind = op.initializer(ir.tensor(np.array([0, 0, 0, 0, 0, missing]), name="missing"))
        logits = op.Pad(logits, behind, scalar(op, "never", -np.inf))
    blocks = op.Reshape(logits, [-1, (vocab_size + missing) // block, block])  # [R, blocks, block]
    tops = op.ReduceMax(blocks, [2], keepdims=0)
    best = op.ArgMax(tops, axis=-1, keepdims=1)  # [R, 1]
    place = op.ArgMax(op.GatherND(blocks, best, batch_dims=1), axis=-1, keepdims=1)
    width = op.initializer(ir.tensor(np.int64(block), name="block"))
    return op.Reshape(op.Add(op.Mul(best, width), place), [1, -1])


def cross_shapes(layer: KVLayer, turned: bool) -> tuple[Shape, Shape]:
    """The shapes of a cross-attention's key and value, which is transposed where `turned`."""
    key: Shape = [1, layer.heads, "T", layer.head_dim]
    return key, [1, layer.heads, layer.head_dim, "T"] if turned else key


def _scores_bias(builder: GraphBuilder, step: Step, bias: ScoresBias | None) -> Value:
    """What is added to self-attention's scores: the host's columns up to the total length, and the family's own."""
    op = builder.op
    length = op.Reshape(op.Cast(step.total_sequence_length, to=INT64), [1])
    given = op.Slice(builder.input("attention_bias", FLOAT, [1, 1, "S", "C"]), [0], length, [3])
    if bias is None:
        return given
    keys = op.Slice(builder.input("key_positions", INT64, ["C"]), [0], length, [0])
    return bias(op, step, keys, given)
