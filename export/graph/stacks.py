"""Layers, and stacks of them: what every family's decoder is made of, and an encoder.

T is the length of the encoder's input in tokens or frames, S the number of new tokens of the decoder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnxscript import nn

from edge.export.graph.blocks import Step, Stream, capped, scaled, take
from edge.export.graph.cross import CrossKeysValues
from edge.export.graph.linear import Embedding, Head
from edge.export.graph.operators import Lowering, Value
from edge.export.graph.per_layer import PerLayerInputs
from edge.export.graph.rope import RotaryTable
from edge.export.graph.step import ScoresBias
from edge.export.graph.weights import Weights
from edge.manifest import Dims, EncoderDims


class Residual(nn.Module):
    """Residual block: x + scale * after(block(before(x))); a norm may be missing. rows: those that the block keeps."""

    def __init__(
        self, before: nn.Module | None, block: nn.Module, after: nn.Module | None = None, *, scale: float = 1.0
    ):
        super().__init__()
        self.before = before
        self.block = block
        self.after = after
        self.scale = scale

    def forward(self, op: Lowering, stream: Stream, *given: object, rows: Value | None = None) -> Stream:
        if self.before is None:
            h = x = stream.sum(op)
        else:
            h, x = self.before(op, stream)
        made = self.block(op, h, *given)
        if self.after is not None:
            made = self.after(op, made)
        return Stream(take(op, x, rows), scaled(op, made, self.scale))


class PostNorm(nn.Module):
    """norm(x + block(x)): the order of BART and Marian. rows: those that the block keeps."""

    def __init__(self, norm: nn.Module, block: nn.Module):
        super().__init__()
        self.norm = norm
        self.block = block

    def forward(self, op: Lowering, stream: Stream, *given: object, rows: Value | None = None) -> Stream:
        made = self.block(op, stream.x, *given)
        return Stream(self.norm(op, Stream(take(op, stream.x, rows), made))[0])


class EncoderLayer(nn.Module):
    """Self-attention, and feed-forward. bias: what attention reads besides the stream."""

    def __init__(self, attention: nn.Module, mlp: nn.Module):
        super().__init__()
        self.attention = attention
        self.mlp = mlp

    def forward(self, op: Lowering, stream: Stream, bias: object) -> Stream:
        return self.mlp(op, self.attention(op, stream, bias))


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention where there is an encoder, and feed-forward.

    It leaves the stream before feed-forward in `step.cuts`. `rows` keeps only those rows after attention: the last
    layer needs no others. parallel: feed-forward reads the stream that attention read.
    """

    def __init__(self, attention: nn.Module, mlp: nn.Module, cross: nn.Module | None = None, *, parallel: bool = False):
        super().__init__()
        self.attention = attention
        self.cross = cross
        self.mlp = mlp
        self.parallel = parallel

    def forward(self, op: Lowering, stream: Stream, step: Step, rows: Value | None = None) -> Stream:
        stream = self.attention(op, stream, step, rows, rows=rows)
        if self.cross is not None:
            stream = self.cross(op, stream, step)
        step.cuts.append(stream)
        if not self.parallel:
            return self.mlp(op, stream)
        return Stream(stream.sum(op), self.mlp(op, Stream(stream.x)).added)


class Positions(nn.Module):
    """What belongs to absolute positions, [positions, H] float32: embeddings, learned or computed, or scales."""

    def __init__(self, weights: Weights, name: str, table: np.ndarray):
        super().__init__()
        self.table = weights.table(name, table.astype(np.float32))

    def forward(self, op: Lowering, positions: Value) -> Value:
        """The rows [1, S, H] of `positions` [1, S]."""
        return op.table_rows(self.table, positions)


def arange(op: Lowering, ids: Value) -> Value:
    """The positions 0 to T - 1 of `ids` [1, T], as [T]."""
    length = op.Squeeze(op.Shape(ids, start=1, end=2), [0])
    return op.Range(op.Constant(value_int=0), length, op.Constant(value_int=1))


class TextStart(nn.Module):
    """Token embeddings, with absolute positions and a norm where the family has them."""

    def __init__(self, embedding: Embedding, positions: Positions | None = None, norm: nn.Module | None = None):
        super().__init__()
        self.embedding = embedding
        self.positions = positions
        self.norm = norm

    def forward(self, op: Lowering, ids: Value, positions: Value | None) -> Value:
        x = self.embedding(op, ids)
        if self.positions is not None:
            assert positions is not None
            x = op.Add(x, self.positions(op, positions))
        return x if self.norm is None else self.norm(op, Stream(x))[0]


class Encoder(nn.Module):
    """A start, layers, a final norm where there is one, and the decoder's keys and values.

    start: makes embeddings [1, T, H] of the input and its positions [1, T]. layers: take the residual stream, and what
    `bias` makes of the token ids [1, T], such as a bias [1, H, T, T] of the scores. absolute: it reads positions.
    """

    def __init__(
        self,
        start: nn.Module,
        layers: Iterable[nn.Module],
        cross: CrossKeysValues,
        *,
        norm: nn.Module | None = None,
        bias: nn.Module | None = None,
        absolute: bool = False,
    ):
        super().__init__()
        self.start = start
        self.layers = nn.ModuleList(list(layers))
        self.cross = cross
        self.norm = norm
        self.bias = bias
        self.absolute = absolute

    def forward(self, op: Lowering, x: Value) -> list[tuple[Value, Value]]:
        positions = op.Unsqueeze(arange(op, x), [0]) if self.absolute else None
        bias = None if self.bias is None else self.bias(op, x)
        stream = Stream(self.start(op, x, positions))
        for layer in self.layers:
            stream = layer(op, stream, bias)
        return self.cross(op, finish(op, stream, self.norm))


def finish(op: Lowering, stream: Stream, norm: nn.Module | None) -> Value:
    """The stream added up, and normed where there is a final norm."""
    return stream.sum(op) if norm is None else norm(op, stream)[0]


class Decoder(nn.Module):
    """A start, layers, a final norm where there is one, and the output head: logits [1, R, V] of `logit_rows` alone.

    head: the name of the head's matrix. scale multiplies what it reads; head_bias is added to the logits, and softcap
    bounds them: c * tanh(logit / c). rope: the rotary tables by the names that the layers know them by. per_layer: what
    makes each layer's input besides the stream. query_scales: what queries are multiplied by, [positions, 1].
    """

    def __init__(
        self,
        weights: Weights,
        start: nn.Module,
        layers: Iterable[nn.Module],
        head: str,
        *,
        norm: nn.Module | None = None,
        scale: float = 1.0,
        head_bias: nn.Parameter | None = None,
        softcap: float | None = None,
        rope: Mapping[str, RotaryTable] | None = None,
        per_layer: PerLayerInputs | None = None,
        query_scales: Positions | None = None,
    ):
        super().__init__()
        self.start = start
        self.per_layer = per_layer
        self.query_scales = query_scales
        self.rope = rope or {}
        for name, table in self.rope.items():
            setattr(self, f"{name}_rope", table)
        self.layers = nn.ModuleList(list(layers))
        self.norm = norm
        self.lm_head = Head(weights.matrix(f"{head}.weight", "head"), head_bias)
        self.scale = scale
        self.softcap = softcap

    def forward(self, op: Lowering, input_ids: Value, logit_rows: Value, step: Step) -> Value:
        step.rope = {name: table(op) for name, table in self.rope.items()}
        if self.query_scales is not None:
            step.query_scale = self.query_scales(op, step.position_ids)
        stream = Stream(self.start(op, input_ids, step.position_ids))
        if self.per_layer is not None:
            step.per_layer = self.per_layer(op, input_ids, stream.x)
        *layers, last = self.layers
        for layer in layers:
            stream = layer(op, stream, step)
            step.cuts.append(stream)
        h = finish(op, last(op, stream, step, logit_rows), self.norm)
        logits = self.lm_head(op, scaled(op, h, self.scale, "head_scale"))
        return logits if self.softcap is None else capped(op, logits, self.softcap, dtype=ir.DataType.FLOAT)


@dataclass(frozen=True)
class EncoderDecoder:
    """An encoder-decoder as a family builds it.

    bias: the family's term in the scores of the decoder's self-attention. bins: mel filters of the features that an
    encoder of audio reads.
    """

    encoder: Encoder
    decoder: Decoder
    dims: Dims
    encoder_dims: EncoderDims
    bias: ScoresBias | None = None
    bins: int | None = None
