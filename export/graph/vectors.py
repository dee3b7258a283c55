"""Graphs that make one vector of each text: an encoder's layers, pooling, dense layers, normalization; and those that
score a pair, whose vector is one number.

Texts of a step have the same number of tokens, so that nothing is padded and nothing masked. B is the number of texts,
T of tokens of each, H the hidden size, W the vector's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir
from onnxscript import GraphBuilder, nn

from edge.embedding_format import CLS, IDS, LAST, MEAN, TYPES, VECTORS
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
    """Rows of the word embedding plus those of the positions from 0 on, and a norm. table: [positions, H], of tokens of
    the first type; `first` [H] is that type's, where there are no such rows. `types` is what the second type adds to
    them, [2, H], the first row zeros."""

    def __init__(self, embedding: nn.Module, table: nn.Parameter | None, norm: nn.Module | None):
        super().__init__()
        self.embedding = embedding
        self.table = table
        self.norm = norm
        self.first: nn.Parameter | None = None
        self.types: nn.Parameter | None = None

    def forward(self, op: Lowering, ids: Value, types: Value | None = None) -> Stream:
        x = self.embedding(op, ids)
        if self.table is not None:
            x = op.Add(x, op.first_rows(self.table, x))
        if self.first is not None:
            x = op.Add(x, self.first)
        if types is not None:
            assert self.types is not None
            x = op.Add(x, op.table_rows(self.types, types))
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

    def forward(self, op: Lowering, ids: Value, types: Value | None = None) -> Value:
        bias = None if self.bias is None else self.bias(op, ids)
        stream = self.start(op, ids) if types is None else self.start(op, ids, types)
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
        self.norms = [
            None
            if each.norm is None
            else (
                weights.table(f"dense.{i}.norm.weight", each.norm.weight),
                weights.table(f"dense.{i}.norm.bias", each.norm.bias),
            )
            for i, each in enumerate(pooling.dense)
        ]
        of_norms = [parameter for norm in self.norms if norm is not None for parameter in norm]
        for i, parameter in enumerate([*self.weights, *self.biases, *of_norms]):
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
        for weight, bias, norm, each in zip(self.weights, self.biases, self.norms, self.pooling.dense, strict=True):
            x = _each_alone(op, x, weight)
            x = x if bias is None else op.Add(x, bias)
            if each.activation == "tanh":
                x = op.Tanh(x)
            elif each.activation != "identity":
                x = activation_of(each.activation)(op, x)
            if each.norm is not None and norm is not None:
                x = op.layer_norm(x, *norm, each.norm.eps)
        if not self.pooling.normalized:
            return x
        length = op.ReduceL2(x, [-1], keepdims=1)
        return op.Div(x, op.Max(length, scalar(op, "smallest", SMALLEST)))


def _each_alone(op: Lowering, x: Value, weight: Value) -> Value:
    """The products W x of vectors [B, K] with a matrix [N, K], each by itself: one of all of them would add in another
    order for one text than for several."""
    return op.Squeeze(op.MatMul(weight, op.Unsqueeze(x, [2])), [2])


def embedder_graph(model: EmbeddingModel, head: Head, width: int, lower: Lower, *, types: bool) -> GraphBuilder:
    """The graph: `input_ids` [B, T], and `token_type_ids` [B, T] where a pair's texts have `types`, -> `embeddings`
    [B, W] float32."""
    builder, op = new_graph("embedder", lower)
    given = [builder.input(name, INT64, ["B", "T"]) for name in (IDS, *([TYPES] if types else []))]
    made = head(op, model.encoder(op, *given))
    made = made if op.dtype == ir.DataType.FLOAT else op.Cast(made, to=ir.DataType.FLOAT)
    add_output(builder, made, VECTORS, ["B", width])
    return builder
