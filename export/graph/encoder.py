"""The graph of an encoder, which makes keys and values of an input for the decoder's steps."""

from __future__ import annotations

from onnxscript import GraphBuilder

from edge.export.graph.stacks import EncoderDecoder
from edge.export.graph.step import FLOAT, INT64, Lower, add_output, cross_shapes, new_graph
from edge.manifest import KVLayout


def encoder_graph(model: EncoderDecoder, cross: KVLayout, turned: bool, lower: Lower) -> GraphBuilder:
    """The encoder's graph. turned, lower: as in `step_graph`."""
    builder, op = new_graph("encoder", lower)
    if model.bins is None:
        x = builder.input("input_ids", INT64, [1, "T"])
    else:
        x = builder.input("input_features", FLOAT, [1, model.bins, "F"])
        x = x if op.dtype == FLOAT else op.Cast(x, to=op.dtype)
    made = model.encoder(op, x)
    for i, (pair, layer) in enumerate(zip(made, cross.layers, strict=True)):
        for value, part, shape in zip(pair, ("key", "value"), cross_shapes(layer, turned), strict=True):
            add_output(builder, value, f"cross.{i}.{part}", shape, op.dtype)
    return builder
