"""Decoder graphs: a checkpoint's configuration and weights become `graphs/decoder.onnx`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnxscript import GraphBuilder
from transformers import AutoConfig

from edge.bundle import BundleWriter
from edge.errors import ExportError
from edge.export.graph.blocks import Attention, Decoder, Step, heads_of
from edge.export.graph.families import find_family, known_families
from edge.export.graph.weights import Weights
from edge.export.quantize.base import Weight
from edge.manifest import Dims, Graph, KVLayer, KVLayout, TensorGroup

__all__ = ["DecoderGraph", "build_decoder", "known_families"]

OPSET = 21
IR_VERSION = 10  # of the ONNX file format, as opset 21 came with
DECODER = "graphs/decoder.onnx"


class ModelSource(Protocol):
    """What of a checkpoint a graph needs beside its quantized matrices."""

    config: dict[str, Any]

    def read(self, name: str) -> NDArray[np.float32]: ...


@dataclass(frozen=True)
class DecoderGraph:
    """What was built, for the manifest."""

    family: str
    dims: Dims
    kv: KVLayout
    groups: list[TensorGroup]
    graphs: list[Graph]


def build_decoder(
    checkpoint: ModelSource, weights: Mapping[str, Weight], writer: BundleWriter, max_context: int
) -> DecoderGraph:
    """Write a decoder's tensors and its step graph into the bundle.

    weights: every linear's and the embedding's matrix by parameter name; norms and biases are read from the
    checkpoint. max_context: the number of positions the graph can take.

    Raises:
        ExportError: the model's type is of no known family, or it asks for what no graph can do.
    """
    family, module = find_family(str(checkpoint.config.get("model_type")))
    config = _configuration(checkpoint.config)
    store = Weights(checkpoint, weights, writer)
    decoder: Decoder = module.decoder(config, store, max_context)
    attention = [m for m in decoder.modules() if isinstance(m, Attention)]  # in the layers' order
    kv = KVLayout("float32", [KVLayer(a.heads.key_value, a.heads.dim, a.window) for a in attention])
    graph = _step_graph(decoder, kv, config.vocab_size)
    writer.write_file(DECODER, ir.to_proto(graph).SerializeToString())
    heads = heads_of(config)
    dims = Dims(
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=heads.query,
        num_kv_heads=heads.key_value,
        head_dim=heads.dim,
        vocab_size=config.vocab_size,
    )
    return DecoderGraph(family, dims, kv, store.groups(), [Graph("decoder", DECODER)])


def _configuration(raw: dict[str, Any]) -> Any:
    """transformers' configuration object, which knows the defaults and both spellings of rope settings."""
    try:
        return AutoConfig.for_model(**raw)
    except Exception as e:  # of any class: each model's configuration checks itself in its own way
        reason = " ".join(str(e).split()).rstrip(".")
        raise ExportError(f"transformers does not accept the model's configuration: {reason}.") from None


def _step_graph(decoder: Decoder, kv: KVLayout, vocab_size: int) -> ir.Model:
    """The graph of one step, as docs/bundle-format.md describes it."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": OPSET, "com.microsoft": 1}, name="decoder")
    builder = GraphBuilder(graph)
    int32, int64, float32 = ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT
    input_ids = builder.input("input_ids", int64, [1, "S"])
    step = Step(
        position_ids=builder.input("position_ids", int64, [1, "S"]),
        seqlens_k=builder.input("seqlens_k", int32, [1]),
        total_sequence_length=builder.input("total_sequence_length", int32, []),
        past=[],
    )
    logit_rows = builder.input("logit_rows", int64, ["R"])
    shapes: list[list[int | str | None]] = [[1, layer.heads, "C", layer.head_dim] for layer in kv.layers]
    for i, shape in enumerate(shapes):
        key, value = (builder.input(f"past.{i}.{part}", float32, shape) for part in ("key", "value"))
        step.past.append((key, value))
    logits = decoder(builder.op, input_ids, logit_rows, step)
    _add_output(builder, logits, "logits", [1, "R", vocab_size])
    for i, shape in enumerate(shapes):
        for value, part in zip(step.present[i], ("key", "value"), strict=True):
            _add_output(builder, value, f"present.{i}.{part}", shape)
    for node in graph:
        node.metadata_props.clear()  # the modules' names stay in the nodes' names
    return ir.Model(graph, ir_version=IR_VERSION, producer_name="edge")


def _add_output(builder: GraphBuilder, value: ir.Value, name: str, shape: list[int | str | None]) -> None:
    value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(shape)
    builder.add_output(value, name)
