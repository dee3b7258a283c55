"""The graph of one decoder step, as docs/reference/bundle-format.md describes it, and what building any graph takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike
from onnxscript import GraphBuilder

from edge.errors import ExportError, on_one_line
from edge.export.graph.blocks import Step
from edge.export.graph.families import find_family
from edge.export.graph.operators import Lowering, Value
from edge.manifest import Dims, EncoderDims, Graph, KVLayer, KVLayout, PrefillGraph, State, TensorGroup
from edge.runtime.kernels.units import cut_names

Lower = Callable[[GraphBuilder], Lowering]
OPSET = 21
IR_VERSION = 10  # of the ONNX file format, as opset 21 came with
DECODER = "graphs/decoder.onnx"
BATCH = "B"  # the first dimension of a graph whose steps may take a token of each of several sequences

FLOAT, INT32, INT64 = ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.INT64
Shape = list[int | str | None]


@dataclass(frozen=True)
class Built:
    """Result of building graphs: fields of the manifest. prefill: of a decoder with an int8 prefill graph; short_rope:
    of one with other rotary tables for short texts; encoder, cross: of an encoder-decoder."""

    family: str
    dims: Dims
    kv: KVLayout
    groups: list[TensorGroup]
    graphs: list[Graph]
    states: list[State] = field(default_factory=list)
    prefill: PrefillGraph | None = None
    short_rope: int | None = None
    encoder: EncoderDims | None = None
    cross: KVLayout | None = None


class StepModel(Protocol):
    """A decoder as a module: the logits [B, R, V] of `logit_rows`; what it leaves in the caches stands in the step."""

    def __call__(self, op: Lowering, input_ids: Value, logit_rows: Value, step: Step) -> Value: ...


class ScoresBias(Protocol):
    """Adds a family's own bias to the one that the host gives, [1, 1, S, T]; returns [1, H, S, T].

    keys: the positions [T] of the cache's rows.
    """

    def __call__(self, op: Lowering, step: Step, keys: Value, given: Value) -> Value: ...


def configuration(raw: dict[str, Any]) -> Any:
    """The configuration as families read it: its own fields where that takes no transformers, else its object."""
    family = find_family(str(raw.get("model_type")))[1]
    if family.layers is not None or family.gguf is not None:
        return SimpleNamespace(**raw)
    from transformers import AutoConfig

    try:
        config = AutoConfig.for_model(**raw)
    except Exception as e:  # of any class: each model's configuration checks itself in its own way
        raise ExportError(f"transformers does not accept the model's configuration: {on_one_line(e)}.") from None
    if raw.get("tie_word_embeddings") is False:
        config.tie_word_embeddings = False  # T5's class says True whatever it is given
    return config


def new_graph(name: str, lower: Lower) -> tuple[GraphBuilder, Lowering]:
    """A builder of an empty graph, and what modules write it with."""
    builder = GraphBuilder(ir.Graph([], [], nodes=[], opset_imports={"": OPSET}, name=name))
    op = lower(builder)
    builder.graph.opset_imports.update(op.domains)
    return builder, op


def add_output(builder: GraphBuilder, value: ir.Value, name: str, shape: Shape, dtype: ir.DataType = FLOAT) -> None:
    """Make `value` an output of the graph."""
    value.type, value.shape = ir.TensorType(dtype), ir.Shape(shape)
    builder.add_output(value, name)


def for_one_sequence(graph: ir.Graph) -> None:
    """Set the batch size of a graph to one sequence."""
    for value in (*graph.inputs, *graph.outputs):
        if value.shape is not None and value.shape and value.shape[0] == BATCH:
            value.shape = ir.Shape([1, *value.shape[1:]])


def add_constant(graph: ir.Graph, name: str, values: ArrayLike, dtype: type = np.int64) -> ir.Value:
    """Add an initializer to a graph that was built."""
    value = ir.val(name, const_value=ir.tensor(np.array(values, dtype), name=name))
    graph.register_initializer(value)
    return value


def named(name: str, nodes: Sequence[ir.Node]) -> Sequence[ir.Node]:
    """Name the nodes and their outputs; return the nodes."""
    for i, node in enumerate(nodes):
        node.name = f"{name}.{i}"
        for j, value in enumerate(node.outputs):
            value.name = f"{node.name}.{j}"
    return nodes


def _name_cuts(step: Step, dtype: ir.DataType) -> None:
    """Name the values of the residual stream between the blocks, so that the graph can be cut there."""
    for i, stream in enumerate(step.cuts):
        names = cut_names(i // 2, "feed_forward" if i % 2 else "attention")
        for value, name in zip((stream.x, stream.added), names, strict=True):
            if value is not None:
                value.name, value.type = name, ir.TensorType(dtype)


def step_graph(
    decoder: StepModel,
    kv: KVLayout,
    vocab_size: int,
    *,
    states: Sequence[State] = (),
    cross: KVLayout | None = None,
    turned: bool = False,
    bias: ScoresBias | None = None,
    chooses: bool = False,
    lower: Lower,
) -> GraphBuilder:
    """The graph of one step.

    states: of layers that keep those instead of keys and values. cross: the encoder's keys and values, of an
    encoder-decoder; its steps may be trees. turned: its values are transposed. bias: the family's own bias. chooses: it
    says which tokens are the likeliest as well. lower: the target that it is written for.

    Without an encoder it takes several sequences, of one token each: the kernel of attention takes no more.
    """
    builder, op = new_graph("decoder", lower)
    count: int | str = BATCH if cross is None else 1
    input_ids = builder.input("input_ids", INT64, [count, "S"])
    step = Step(
        position_ids=builder.input("position_ids", INT64, [count, "S"]),
        seqlens_k=builder.input("seqlens_k", INT32, [count]),
        total_sequence_length=builder.input("total_sequence_length", INT32, []),
        past={},
    )
    logit_rows = builder.input("logit_rows", INT64, ["R"])
    # Layers without heads read the keys and values of others, or keep a state.
    shapes: dict[int, Shape] = {
        i: [count, layer.heads, "C", layer.head_dim] for i, layer in enumerate(kv.layers) if layer.heads
    }
    for i, shape in shapes.items():
        key, value = (builder.input(f"past.{i}.{part}", op.dtype, shape) for part in ("key", "value"))
        step.past[i] = key, value
    for state in states:
        step.states[state.layer, state.name] = builder.input(state.input, FLOAT, [count, *state.shape])
    if cross is not None:
        for i, layer in enumerate(cross.layers):
            parts = zip(("key", "value"), cross_shapes(layer, turned), strict=True)
            key, value = (builder.input(f"cross.{i}.{part}", op.dtype, shape) for part, shape in parts)
            step.cross.append((key, value))
        step.attention_bias = _scores_bias(builder, op, step, bias)
    logits = decoder(op, input_ids, logit_rows, step)
    if len(step.cuts) == 2 * len(kv.layers) - 1:  # else layers have no halves between which there is one stream
        _name_cuts(step, op.dtype)
    add_output(builder, logits, "logits", [count, "R", vocab_size])
    if chooses:
        add_output(builder, op.likeliest(logits, vocab_size), "tokens", [count, "R"], INT64)
    for i, shape in shapes.items():
        for value, part in zip(step.present[i], ("key", "value"), strict=True):
            add_output(builder, value, f"present.{i}.{part}", shape, op.dtype)
    for state in states:
        after = step.written[state.layer, state.name]
        add_output(builder, after, f"present.{state.layer}.{state.name}", [count, *state.shape])
    return builder


def cross_shapes(layer: KVLayer, turned: bool) -> tuple[Shape, Shape]:
    """The shapes of a cross-attention's key and value, which is transposed where `turned`."""
    key: Shape = [1, layer.heads, "T", layer.head_dim]
    return key, [1, layer.heads, layer.head_dim, "T"] if turned else key


def _scores_bias(builder: GraphBuilder, op: Lowering, step: Step, bias: ScoresBias | None) -> Value:
    """Return the bias of self-attention's scores: the host's columns up to the total length, and the family's bias."""
    length = step.total_sequence_length
    given = op.first_columns(builder.input("attention_bias", op.dtype, [1, 1, "S", "C"]), length, 3)
    if bias is None:
        return given
    keys = op.first_columns(builder.input("key_positions", INT64, ["C"]), length, 0)
    return bias(op, step, keys, given)


def remove_unused(graph: ir.Graph) -> None:
    """Remove nodes and constants that nothing reads: positions, for one, where the host looks them up."""
    for node in reversed(list(graph)):
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            graph.remove(node, safe=True)
    for constant in [name for name, value in graph.initializers.items() if not value.uses()]:
        del graph.initializers[constant]
