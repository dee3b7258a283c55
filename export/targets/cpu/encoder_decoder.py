"""Encoder-decoder graphs: `graphs/encoder.onnx`, and `graphs/decoder.onnx` that reads what it makes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from onnxscript import nn

from edge.bundle import BundleWriter
from edge.export.facts.checkpoint import Checkpoint
from edge.export.facts.tensors import Weight
from edge.export.graph.blocks import MLP
from edge.export.graph.caches import layouts
from edge.export.graph.cross import Reader
from edge.export.graph.encoder import encoder_graph
from edge.export.graph.families import find_family
from edge.export.graph.linear import Linear
from edge.export.graph.stacks import EncoderDecoder
from edge.export.graph.step import (
    DECODER,
    Built,
    configuration,
    step_graph,
)
from edge.export.graph.weights import StoredRows, Weights
from edge.export.targets.cpu.files import write_graph
from edge.export.targets.cpu.lowering import CPU

ENCODER = "graphs/encoder.onnx"


def build_encoder_decoder(
    checkpoint: Checkpoint, weights: Mapping[str, Weight], writer: BundleWriter, max_context: int
) -> Built:
    """Write both halves' tensors and graphs into the bundle.

    weights: matrices by parameter name; norms, biases and position tables are read from the checkpoint.
    max_context: the number of tokens that the decoder, and a text encoder without a limit of its own, can take.

    Raises:
        ExportError: the model's type is of no known family, or it asks for what no graph can do.
    """
    name, family = find_family(str(checkpoint.config.get("model_type")))
    config = configuration(checkpoint.config)
    store = Weights(checkpoint, weights, writer)
    model: EncoderDecoder = family.build(config, store, max_context)
    kv, cross = layouts(model)
    turned = next(m for m in model.decoder.modules() if isinstance(m, Reader)).long_input
    encoder = encoder_graph(model, cross, turned, CPU).graph
    decoder = step_graph(
        model.decoder, kv, model.dims.vocab_size, cross=cross, turned=turned, bias=model.bias, lower=CPU
    ).graph
    return Built(
        family=name,
        dims=model.dims,
        encoder=dataclasses.replace(model.encoder_dims, values_transposed=turned, any_length=True),
        kv=kv,
        cross=cross,
        groups=store.groups(),
        graphs=[
            write_graph(
                writer,
                "encoder",
                ENCODER,
                encoder,
                parts=max((m.parts for m in model.encoder.modules() if isinstance(m, MLP)), default=1),
                precise_layers=sum(any(map(_is_precise, layer.modules())) for layer in model.encoder.layers),
            ),
            write_graph(writer, "decoder", DECODER, decoder),
        ],
    )


def _is_precise(module: nn.Module) -> bool:
    """True if it is a product that reads rows in 16 bits."""
    return isinstance(module, Linear) and isinstance(module.stored, StoredRows) and module.stored.precise
