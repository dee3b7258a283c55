"""Graphs that make one vector of each text: an encoder's layers, pooling, dense layers, normalization.

Texts of a step have the same number of tokens, so that nothing is padded and nothing masked. B is the number of texts,
T of tokens of each, H the hidden size, W the vector's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir
from onnxscript import GraphBuilder, nn

from edge.embedding_format import CLS, LAST, MEAN, VECTORS
from edge.export.facts.pooling import Pooling
from edge.export.graph.blocks import Stream, activation_of
from edge.export.graph.operators import Lowering, Value, scalar
from edge.export.graph.stacks import finish
from edge.export.graph.step import INT64, Lower, add_output, new_graph
from edge.export.graph.weights import Weights
from edge.manifest import Dims

SMALLEST = 1e-12  # length of a vector that is normalized, as torch's normalize has it
ENDS = {CLS: 0, LAST: -1}  # the token whose vector is the text's


class Embeddings(nn.Module):
    """Rows of the word embedding plus those of the positions from 0 on, and a norm. table: [positions, H]."""

    def __init__(self, embedding: nn.Module, table: nn.Parameter | None, norm: nn.Module | None):
        super().__init__()
        self.embedding = embedding
        self.table = table
        self.norm = norm

    def forward(self, op: Lowering, ids: Value) -> Stream:
        x = self.embedding(op, ids)
        if self.table is not None:
            x = op.Add(x, op.first_rows(self.table, x))
        return Stream(x if self.norm is None else self.norm(op, Stream(x))[0])


class TextEncoder(nn.Module):
    """A start, layers, and a final norm where there is one: hidden states [B, T, H] of token ids [B, T].

    bias: makes what the layers read besides the stream of the ids.
    """

    def __init__(
        self,
        start: nn.Module,
        layers: Iterable[nn.Module],
        *,
        norm: nn.Module | None = None,
        bias: nn.Module | None = None,
    ):
        super().__init__()
        self.start = start
        self.layers = nn.ModuleList(list(layers))
        self.norm = norm
        self.bias = bias

    def forward(self, op: Lowering, ids: Value) -> Value:
        bias = None if self.bias is None else self.bias(op, ids)
        stream = self.start(op, ids)
        for layer in self.layers:
            stream = layer(op, stream, bias)
        return finish(op, stream, self.norm)


@dataclass(frozen=True)
class EmbeddingModel:
    """An encoder as a family builds it. dims: as the manifest has them."""

    encoder: nn.Module
    dims: Dims


class Head(nn.Module):
    """The vector [B, W] of hidden states [B, T, H]."""

    def __init__(self, weights: Weights, pooling: Pooling):
        super().__init__()
        self.pooling = pooling
        self.weights = [weights.table(f"dense.{i}.weight", each.weight) for i, each in enumerate(pooling.dense)]
        self.biases = [
            None if each.bias is None else weights.table(f"dense.{i}.bias", each.bias)
            for i, each in enumerate(pooling.dense)
        ]
        for i, parameter in enumerate([*self.weights, *self.biases]):
            if parameter is not None:
                setattr(self, f"parameter_{i}", parameter)

    def forward(self, op: Lowering, x: Value) -> Value:
        mode = self.pooling.mode
        if mode in ENDS:
            x = op.Gather(x, op.Constant(value_int=ENDS[mode]), axis=1)
        else:
            # Over the last axis: over the second one onnxruntime adds in another order for one text than for several.
            turned = op.Transpose(x, perm=[0, 2, 1])
            x = (op.ReduceMean if mode == MEAN else op.ReduceMax)(turned, [2], keepdims=0)
        for weight, bias, each in zip(self.weights, self.biases, self.pooling.dense, strict=True):
            x = op.matmul(x, weight, transposed=True)
            x = x if bias is None else op.Add(x, bias)
            if each.activation == "tanh":
                x = op.Tanh(x)
            elif each.activation != "identity":
                x = activation_of(each.activation)(op, x)
        if not self.pooling.normalized:
            return x
        length = op.ReduceL2(x, [-1], keepdims=1)
        return op.Div(x, op.Max(length, scalar(op, "smallest", SMALLEST)))


def embedder_graph(model: EmbeddingModel, head: Head, width: int, lower: Lower) -> GraphBuilder:
    """The graph: `input_ids` [B, T] -> `embeddings` [B, W] float32."""
    builder, op = new_graph("embedder", lower)
    ids = builder.input("input_ids", INT64, ["B", "T"])
    made = head(op, model.encoder(op, ids))
    made = made if op.dtype == ir.DataType.FLOAT else op.Cast(made, to=ir.DataType.FLOAT)
    add_output(builder, made, VECTORS, ["B", width])
    return builder
