"""What encoders, and decoders that read them, have beside the shared blocks.

T is the length of the encoder's input in tokens or frames, S the number of new tokens of the decoder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnxscript import nn

from edge.export.graph.blocks import Step, Stream, activation_of, capped, norm_weight, scaled
from edge.export.graph.linear import Embedding, Linear, Projections, linear
from edge.export.graph.rope import RotaryTable
from edge.export.graph.step import ScoresBias
from edge.export.graph.weights import Weights
from edge.export.lower.base import Lowering, Value
from edge.manifest import Dims, EncoderDims

ENCODER = "encoder"  # the groups of an encoder's weights in the manifest begin with it


class LayerNorm(nn.Module):
    """Layer norm over the last axis, with weight and bias."""

    def __init__(self, weights: Weights, name: str, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = norm_weight(weights, name, 0.0)
        self.bias = weights.vector([f"{name}.bias"], f"{name}.bias", "norm")

    def forward(self, op: Lowering, x: Value) -> Value:
        return op.layer_norm(x, self.weight, self.bias, self.eps)


class ResidualLayerNorm(nn.Module):
    """The layer norm of the residual stream, which also adds up the stream: returns both. many_rows: of an encoder's
    long input."""

    def __init__(self, weights: Weights, name: str, eps: float = 1e-5, *, many_rows: bool = False):
        super().__init__()
        self.eps = eps
        self.weight = norm_weight(weights, name, 0.0)
        self.bias = weights.vector([f"{name}.bias"], f"{name}.bias", "norm")
        self.many_rows = many_rows

    def forward(self, op: Lowering, stream: Stream) -> tuple[Value, Value]:
        if stream.added is None:
            return op.layer_norm(stream.x, self.weight, self.bias, self.eps), stream.x
        return op.add_layer_norm(stream.x, stream.added, self.weight, self.bias, self.eps, many_rows=self.many_rows)


@dataclass(frozen=True)
class Names:
    """What a family calls the projections of an attention block."""

    q: str = "q_proj"
    k: str = "k_proj"
    v: str = "v_proj"
    out: str = "out_proj"


class EncoderAttention(nn.Module):
    """Self-attention over the whole input; `bias` [1, H, T, T] is added to the scores.

    biased: which projections have a bias, by their names in `names`.
    """

    def __init__(
        self,
        weights: Weights,
        name: str,
        heads: int,
        scale: float,
        *,
        names: Names = Names(),
        biased: Sequence[str] = (),
    ):
        super().__init__()
        self.heads = heads
        self.scale = scale
        group = f"{ENCODER}.attention"
        inputs = [f"{name}.{p}" for p in (names.q, names.k, names.v)]
        self.qkv_proj = Projections(
            weights, inputs, f"{name}.qkv_proj", group, bias=[f"{name}.{p}" for p in biased if p != names.out]
        )
        self.out_proj = linear(weights, f"{name}.{names.out}", group, bias=names.out in biased)

    def forward(self, op: Lowering, x: Value, bias: Value | None) -> Value:
        parts = self.qkv_proj(op, x)
        query, key, value = parts if len(parts) == 3 else op.Split(parts[0], axis=-1, num_outputs=3, _outputs=3)
        y = op.full_attention(query, key, value, bias, heads=self.heads, scale=self.scale)
        return self.out_proj(op, y)


class CrossAttention(nn.Module):
    """Attention to what the encoder made of its input, in a decoder layer.

    Two forms. For short inputs one operator, whose value is [1, H, T, D]. For long ones the operands stand the other
    way round than on paper: key [T, D] times query [D, S], and value [D, T] times the weights [T, S]. onnxruntime
    repacks a product's second operand in every call, and keys and values of a long input are many times larger than
    the query: for 2 to 8 rows this takes a quarter of the one operator's time (T = 1500, 2 threads), for one row as
    long. But it is nine operators, which would cost a model of 5M parameters a third of its step.
    """

    def __init__(
        self,
        weights: Weights,
        name: str,
        layer: int,
        heads: int,
        scale: float,
        *,
        names: Names = Names(),
        biased: Sequence[str] = (),
        long_input: bool = True,
    ):
        super().__init__()
        self.layer = layer
        self.heads = heads
        self.scale = scale
        self.long_input = long_input
        self.q_proj = linear(weights, f"{name}.{names.q}", "cross_attention", bias=names.q in biased)
        self.dim = self.q_proj.stored.rows // heads
        self.out_proj = linear(weights, f"{name}.{names.out}", "cross_attention", bias=names.out in biased)

    def forward(self, op: Lowering, x: Value, step: Step) -> Value:
        key, value = step.cross[self.layer]
        query = self.q_proj(op, x)
        if not self.long_input:
            y = op.full_attention(query, key, value, None, heads=self.heads, scale=self.scale)
            return self.out_proj(op, y)
        query = op.Reshape(query, [1, -1, self.heads, self.dim])
        query = op.Transpose(query, perm=[0, 2, 3, 1])  # [1, H, D, S]
        scores = op.matmul(key, query, scale=self.scale)  # [1, H, T, S]
        chances = op.Softmax(op.Transpose(scores, perm=[0, 1, 3, 2]), axis=-1)
        y = op.MatMul(value, op.Transpose(chances, perm=[0, 1, 3, 2]))  # [1, H, D, S]
        y = op.Reshape(op.Transpose(y, perm=[0, 3, 1, 2]), [1, -1, self.heads * self.dim])
        return self.out_proj(op, y)


class CrossKeysValues(nn.Module):
    """Keys and values of every decoder layer's cross-attention, a layer's in one product where their formats allow it.

    Not all layers' in one: of 30 s of audio that product is 37 MB for Whisper base, and scaling, biases and taking it
    apart would each make another copy.

    names: each layer's attention block in the checkpoint. Returns per layer a key [1, H, T, D] and a value, as
    `CrossAttention` reads it: [1, H, D, T] for long inputs, else [1, H, T, D].
    """

    def __init__(
        self,
        weights: Weights,
        blocks: Sequence[str],
        heads: int,
        *,
        names: Names = Names(),
        biased: Sequence[str] = (),
        long_input: bool = True,
    ):
        super().__init__()
        self.heads = heads
        self.value_order = [0, 2, 3, 1] if long_input else [0, 2, 1, 3]
        members = (names.k, names.v)
        self.layers = nn.ModuleList(
            [
                Projections(
                    weights,
                    [f"{block}.{p}" for p in members],
                    f"{block}.kv_proj",
                    f"{ENCODER}.cross_attention",
                    bias=[f"{block}.{p}" for p in members if p in biased],
                )
                for block in blocks
            ]
        )

    def forward(self, op: Lowering, x: Value) -> list[tuple[Value, Value]]:
        return [self._layer(op, layer(op, x)) for layer in self.layers]

    def _layer(self, op: Lowering, parts: list[Value]) -> tuple[Value, Value]:
        key, value = parts if len(parts) == 2 else op.Split(parts[0], axis=-1, num_outputs=2, _outputs=2)
        key, value = (op.Reshape(part, [1, 0, self.heads, -1]) for part in (key, value))
        return op.Transpose(key, perm=[0, 2, 1, 3]), op.Transpose(value, perm=self.value_order)


class MLP(nn.Module):
    """fc2(activation(fc1(x))); `activation` by transformers' name.

    parts: so many equal parts of the rows one after the other. What lies between the products is the widest of an
    encoder's activations, and of a part of 30 s of audio it fits into a cache.
    """

    def __init__(
        self,
        weights: Weights,
        first: str,
        second: str,
        activation: str,
        *,
        group: str = "feed_forward",
        bias: bool = True,
        parts: int = 1,
    ):
        super().__init__()
        self.activation = activation_of(activation)
        self.parts = parts
        self.fc1 = linear(weights, first, group, bias=bias)
        self.fc2 = linear(weights, second, group, bias=bias)

    def forward(self, op: Lowering, x: Value) -> Value:
        if self.parts == 1:
            return self._rows(op, x)
        made = []
        for i, part in enumerate(op.Split(x, axis=1, num_outputs=self.parts, _outputs=self.parts)):
            op.builder.push_module(f"parts.{i}")  # each has nodes and constants of its own
            made.append(self._rows(op, part))
            op.builder.pop_module()
        return op.Concat(*made, axis=1)

    def _rows(self, op: Lowering, x: Value) -> Value:
        return self.fc2(op, self.activation(op, self.fc1(op, x)))


class Positions(nn.Module):
    """Absolute position embeddings [positions, H] float32, learned or computed."""

    def __init__(self, weights: Weights, name: str, table: np.ndarray):
        super().__init__()
        self.table = weights.table(name, table.astype(np.float32))

    def forward(self, op: Lowering, positions: Value) -> Value:
        """The rows [1, S, H] of `positions` [1, S]."""
        return op.Gather(self.table, positions, axis=0)


def arange(op: Lowering, ids: Value) -> Value:
    """The positions 0 to T - 1 of `ids` [1, T], as [T]."""
    length = op.Squeeze(op.Shape(ids, start=1, end=2), [0])
    return op.Range(op.Constant(value_int=0), length, op.Constant(value_int=1))


class TextStart(nn.Module):
    """Token embeddings, with absolute positions and a norm where the family has them."""

    def __init__(self, embedding: Embedding, positions: Positions | None = None, norm: LayerNorm | None = None):
        super().__init__()
        self.embedding = embedding
        self.positions = positions
        self.norm = norm

    def forward(self, op: Lowering, ids: Value, positions: Value | None) -> Value:
        x = self.embedding(op, ids)
        if self.positions is not None:
            assert positions is not None
            x = op.Add(x, self.positions(op, positions))
        return x if self.norm is None else self.norm(op, x)


class Encoder(nn.Module):
    """A start, layers, a final norm where there is one, and the decoder's keys and values.

    start: makes embeddings [1, T, H] of the input and its positions [1, T]. layers: take the residual stream, and what
    `bias` makes of the token ids [1, T], such as a bias [1, H, T, T] of the scores.
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
        self.absolute = absolute  # whether the start reads positions

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


class CrossDecoder(nn.Module):
    """A decoder over an encoder's keys and values: logits [1, R, V] of `logit_rows` alone.

    head: the matrix of the output head. scale multiplies what it reads; head_bias is added to the logits, and softcap
    bounds them. rope: the rotary tables by the names that the layers know them by.
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
    ):
        super().__init__()
        self.start = start
        self.rope = rope or {}
        for name, table in self.rope.items():
            setattr(self, f"{name}_rope", table)
        self.softcap = softcap
        self.layers = nn.ModuleList(list(layers))
        self.norm = norm
        self.scale = scale
        self.lm_head = Linear(weights.matrix(head, "head"), head_bias)

    def forward(self, op: Lowering, input_ids: Value, logit_rows: Value, step: Step) -> Value:
        step.rope = {name: table(op) for name, table in self.rope.items()}
        stream = Stream(self.start(op, input_ids, step.position_ids))
        *layers, last = self.layers
        for layer in layers:
            stream = layer(op, stream, step)
            step.cuts.append(stream)
        h = finish(op, last(op, stream, step, logit_rows), self.norm)
        logits = self.lm_head(op, scaled(op, h, self.scale, "head_scale"))
        return logits if self.softcap is None else capped(op, logits, self.softcap)


@dataclass(frozen=True)
class EncoderDecoder:
    """Both halves, as a family makes them.

    bias: what the family adds to the scores of the decoder's self-attention. features: the shape [bins, frames] of what
    an encoder of audio reads.
    """

    encoder: Encoder
    decoder: CrossDecoder
    dims: Dims
    encoder_dims: EncoderDims
    bias: ScoresBias | None = None
    features: tuple[int, int] | None = None
