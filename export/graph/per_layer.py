"""Per-layer embeddings (Gemma 3n and 4): a second, larger table has a few numbers of each token for each layer.

The table is read row by row where it lies, in the mapped file: of a step's tokens alone.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import nn

from edge.export.graph.blocks import HeadNorm, Step, activation_of, scaled, take
from edge.export.graph.linear import Embedding, linear
from edge.export.graph.operators import Lowering, Value
from edge.export.graph.weights import Weights

TABLE = "model.embed_tokens_per_layer"
PROJECTION, NORM = "model.per_layer_model_projection", "model.per_layer_projection_norm"
GATE, OUTPUT, OUTPUT_NORM = "per_layer_input_gate", "per_layer_projection", "post_per_layer_input_norm"


class PerLayerInputs(nn.Module):
    """The inputs of all layers besides the stream: rows of the table, and a projection of the token embeddings."""

    def __init__(self, weights: Weights, config: Any):
        super().__init__()
        self.layers, self.hidden = config.num_hidden_layers, config.hidden_size
        width = config.hidden_size_per_layer_input
        rows = config.vocab_size_per_layer_input
        self.rows = rows if rows < config.vocab_size else None
        self.embedding = Embedding(weights, TABLE, scale=width**0.5, group="per_layer_embedding")
        self.projection = linear(weights, PROJECTION, "per_layer")
        self.norm = HeadNorm(weights, NORM, self.layers, width, config.rms_norm_eps, 0.0)

    def forward(self, op: Lowering, ids: Value, x: Value) -> list[Value]:
        """What each layer reads, [B, S, width], of tokens [B, S] and their embeddings [B, S, H]. Tokens that the table
        has no row for have that of token 0."""
        if self.rows is not None:
            zero, count = (op.initializer(ir.tensor(n, ir.DataType.INT64, name=f"token.{n}")) for n in (0, self.rows))
            ids = op.Where(op.Less(ids, count), ids, zero)
        context = self.norm(op, scaled(op, self.projection(op, x), self.hidden**-0.5, "projected"))
        made = scaled(op, op.Add(context, self.embedding(op, ids)), 2**-0.5, "both")
        return list(op.Split(made, axis=-1, num_outputs=self.layers, _outputs=self.layers))


class PerLayerBlock(nn.Module):
    """output(activation(gate(x)) * what the layer reads), for the rows of x."""

    def __init__(self, weights: Weights, name: str, layer: int, activation: str):
        super().__init__()
        self.layer = layer
        self.activation = activation_of(activation)
        self.gate = linear(weights, f"{name}.{GATE}", "per_layer")
        self.output = linear(weights, f"{name}.{OUTPUT}", "per_layer")

    def forward(self, op: Lowering, x: Value, step: Step, rows: Value | None = None) -> Value:
        read = take(op, step.per_layer[self.layer], rows)
        return self.output(op, op.Mul(self.activation(op, self.gate(op, x)), read))


def shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """The tensors of both modules, by transformers' names."""
    hidden, width, layers = config.hidden_size, config.hidden_size_per_layer_input, config.num_hidden_layers
    found: dict[str, tuple[int, ...]] = {
        f"{TABLE}.weight": (config.vocab_size_per_layer_input, layers * width),
        f"{PROJECTION}.weight": (layers * width, hidden),
        f"{NORM}.weight": (width,),
    }
    for i in range(layers):
        name = f"model.layers.{i}"
        found[f"{name}.{GATE}.weight"] = (width, hidden)
        found[f"{name}.{OUTPUT}.weight"] = (hidden, width)
        found[f"{name}.{OUTPUT_NORM}.weight"] = (hidden,)
    return found
