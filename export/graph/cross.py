"""Attention of encoders, and of decoders that read what an encoder made.

T is the length of the encoder's input in tokens or frames, S the number of new tokens of the decoder.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnxscript import nn

from edge.export.facts.family import Biased, Heads, has_bias
from edge.export.graph.blocks import Step, capped
from edge.export.graph.linear import Projections, linear
from edge.export.graph.operators import Lowering, Value
from edge.export.graph.weights import Weights

ENCODER = "encoder"  # the groups of an encoder's weights in the manifest begin with it


class EncoderAttention(nn.Module):
    """Self-attention over the whole input; `bias` [1, H, T, T] is added to the scores.

    names: the projections of query, key, value and output. bias: whether they have one, or which of them.
    """

    def __init__(
        self, weights: Weights, name: str, heads: int, scale: float, *, names: Sequence[str], bias: Biased = False
    ):
        super().__init__()
        self.heads = heads
        self.scale = scale
        group, (*inputs, output) = f"{ENCODER}.attention", names
        self.qkv_proj = Projections(weights, name, inputs, "qkv_proj", group, bias=bias)
        self.out_proj = linear(weights, f"{name}.{output}", group, bias=has_bias(bias, output))

    def forward(self, op: Lowering, x: Value, bias: Value | None) -> Value:
        parts = self.qkv_proj(op, x)
        query, key, value = parts if len(parts) == 3 else op.Split(parts[0], axis=-1, num_outputs=3, _outputs=3)
        y = op.full_attention(query, key, value, bias, heads=self.heads, scale=self.scale)
        return self.out_proj(op, y)


class Reader(nn.Module):
    """What reads the keys and values that the encoder made of its input, in a decoder layer: of `heads` heads of `dim`
    channels. long_input: whether that may be long, for which a target may have another form."""

    layer: int
    heads: int
    dim: int
    long_input: bool


class CrossAttention(Reader):
    """Attention to what the encoder made of its input. Arguments as of `Reader` and `EncoderAttention`."""

    def __init__(
        self,
        weights: Weights,
        name: str,
        layer: int,
        heads: int,
        scale: float,
        *,
        names: Sequence[str],
        bias: Biased = False,
        long_input: bool = True,
    ):
        super().__init__()
        self.layer = layer
        self.heads = heads
        self.scale = scale
        self.long_input = long_input
        query, _, _, output = names
        self.q_proj = linear(weights, f"{name}.{query}", "cross_attention", bias=has_bias(bias, query))
        self.dim = self.q_proj.stored.rows // heads
        self.out_proj = linear(weights, f"{name}.{output}", "cross_attention", bias=has_bias(bias, output))

    def forward(self, op: Lowering, x: Value, step: Step) -> Value:
        key, value = step.cross[self.layer]
        y = op.cross_attention(
            self.q_proj(op, x), key, value, heads=self.heads, scale=self.scale, long_input=self.long_input
        )
        return self.out_proj(op, y)


class GroupedReader(Reader):
    """Attention of queries [1, S, heads * dim] to a long input, whose keys and values several query heads share: the
    heads of a group are treated like rows. softcap bounds the scores. Returns [1, S, heads * dim]."""

    def __init__(self, layer: int, heads: Heads, scale: float, softcap: float | None = None):
        super().__init__()
        self.layer, self.long_input = layer, True
        self.heads, self.dim = heads.key_value, heads.dim
        self.groups = heads.query // heads.key_value
        self.scale, self.softcap = scale, softcap

    def forward(self, op: Lowering, query: Value, step: Step) -> Value:
        chances = op.Softmax(op.Transpose(self._scores(op, query, step), perm=[0, 1, 3, 2]), axis=-1)
        return self._read(op, op.Transpose(chances, perm=[0, 1, 3, 2]), step)

    def with_sums(self, op: Lowering, query: Value, step: Step) -> tuple[Value, Value]:
        """The same, and the logarithms [1, S, H G] of the sums of the scores' exponentials. It takes half as long again
        for 500 tokens."""
        scores = self._scores(op, query, step)
        sums = op.ReduceLogSumExp(scores, [2])  # [1, H, 1, G S]
        return self._read(op, op.Exp(op.Sub(scores, sums)), step), self._by_tokens(op, sums, 1)

    def _scores(self, op: Lowering, query: Value, step: Step) -> Value:
        """[1, H, T, G S]"""
        query = op.Reshape(query, [1, -1, self.heads, self.groups, self.dim])
        query = op.Transpose(query, perm=[0, 2, 4, 3, 1])  # [1, H, D, G, S]
        query = op.Reshape(query, [1, self.heads, self.dim, -1])
        scores = op.matmul(step.cross[self.layer][0], query, scale=self.scale)
        return scores if self.softcap is None else capped(op, scores, self.softcap)

    def _read(self, op: Lowering, chances: Value, step: Step) -> Value:
        """chances: [1, H, T, G S]."""
        return self._by_tokens(op, op.MatMul(step.cross[self.layer][1], chances), self.dim)

    def _by_tokens(self, op: Lowering, x: Value, dim: int) -> Value:
        """Return [1, S, H G dim] of [1, H, dim, G S]: H heads of keys, each for a group of G queries."""
        x = op.Transpose(op.Reshape(x, [1, self.heads, dim, self.groups, -1]), perm=[0, 4, 1, 3, 2])
        return op.Reshape(x, [1, -1, self.heads * self.groups * dim])


class CrossKeysValues(nn.Module):
    """Keys and values of every decoder layer's cross-attention, a layer's in one product where their formats allow it.

    Not all layers' in one: of 30 s of audio that product is 37 MB for Whisper base, and scaling, biases and taking it
    apart would each make another copy.

    blocks: each layer's attention in the checkpoint. key_norms: of each layer, where there are some. Returns per layer
    a key and a value, as the target's `cross_keys_values` makes them.
    """

    def __init__(
        self,
        weights: Weights,
        blocks: Sequence[str],
        heads: int,
        *,
        names: Sequence[str],
        bias: Biased = False,
        long_input: bool = True,
        key_norms: Sequence[nn.Module] = (),
    ):
        super().__init__()
        self.heads = heads
        self.long_input = long_input
        self.key_norms = nn.ModuleList(list(key_norms))
        _, *members, _ = names
        group = f"{ENCODER}.cross_attention"
        self.layers = nn.ModuleList(
            [Projections(weights, block, members, "kv_proj", group, bias=bias) for block in blocks]
        )

    def forward(self, op: Lowering, x: Value) -> list[tuple[Value, Value]]:
        norms = [*self.key_norms] or [None] * len(self.layers)
        return [self._layer(op, layer(op, x), norm) for layer, norm in zip(self.layers, norms, strict=True)]

    def _layer(self, op: Lowering, parts: list[Value], norm: nn.Module | None) -> tuple[Value, Value]:
        key, value = parts if len(parts) == 2 else op.Split(parts[0], axis=-1, num_outputs=2, _outputs=2)
        key = key if norm is None else norm(op, key)
        return op.cross_keys_values(key, value, heads=self.heads, long_input=self.long_input)
