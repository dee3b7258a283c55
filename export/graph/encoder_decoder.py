"""Encoder-decoder graphs: `graphs/encoder.onnx`, and `graphs/decoder.onnx` that reads what it makes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from onnxscript import GraphBuilder

from edge.bundle import BundleWriter
from edge.export.graph.blocks import Attention
from edge.export.graph.cross import CrossAttention, EncoderDecoder
from edge.export.graph.families import find_family
from edge.export.graph.step import (
    DECODER,
    FLOAT,
    INT64,
    ModelSource,
    add_output,
    configuration,
    cross_shapes,
    new_graph,
    step_graph,
    write_graph,
)
from edge.export.graph.weights import Weights
from edge.export.quantize.base import Weight
from edge.manifest import Dims, EncoderDims, Graph, KVLayer, KVLayout, TensorGroup

ENCODER = "graphs/encoder.onnx"


@dataclass(frozen=True)
class EncoderDecoderGraphs:
    """What was built, for the manifest."""

    family: str
    dims: Dims
    encoder: EncoderDims
    kv: KVLayout
    cross: KVLayout
    groups: list[TensorGroup]
    graphs: list[Graph]


def build_encoder_decoder(
    checkpoint: ModelSource, weights: Mapping[str, Weight], writer: BundleWriter, max_context: int
) -> EncoderDecoderGraphs:
    """Write both halves' tensors and graphs into the bundle.

    weights: matrices by parameter name; norms, biases and position tables are read from the checkpoint.
    max_context: the number of tokens that the decoder, and a text encoder without a limit of its own, can take.

    Raises:
        ExportError: the model's type is of no known family, or it asks for what no graph can do.
    """
    family, module = find_family(str(checkpoint.config.get("model_type")))
    config = configuration(checkpoint.config)
    store = Weights(checkpoint, weights, writer)
    model: EncoderDecoder = module.encoder_decoder(config, store, max_context)
    modules = list(model.decoder.modules())  # in the layers' order
    attention = [m.heads for m in modules if isinstance(m, Attention)]
    kv = KVLayout("float32", [KVLayer(heads.key_value, heads.dim) for heads in attention])
    readers = [m for m in modules if isinstance(m, CrossAttention)]
    cross = KVLayout("float32", [KVLayer(m.heads, m.dim) for m in readers])
    turned = readers[0].long_input
    write_graph(writer, ENCODER, _encoder_graph(model, cross, turned))
    decoder = step_graph(model.decoder, kv, model.dims.vocab_size, cross=cross, turned=turned, bias=model.bias)
    write_graph(writer, DECODER, decoder)
    return EncoderDecoderGraphs(
        family=family,
        dims=model.dims,
        encoder=dataclasses.replace(model.encoder_dims, values_transposed=turned),
        kv=kv,
        cross=cross,
        groups=store.groups(),
        graphs=[Graph("encoder", ENCODER), Graph("decoder", DECODER)],
    )


def _encoder_graph(model: EncoderDecoder, cross: KVLayout, turned: bool) -> GraphBuilder:
    builder = new_graph("encoder")
    if model.features is None:
        x = builder.input("input_ids", INT64, [1, "T"])
    else:
        x = builder.input("input_features", FLOAT, [1, *model.features])
    made = model.encoder(builder.op, x)
    for i, (pair, layer) in enumerate(zip(made, cross.layers, strict=True)):
        for value, part, shape in zip(pair, ("key", "value"), cross_shapes(layer, turned), strict=True):
            add_output(builder, value, f"cross.{i}.{part}", shape)
    return builder
