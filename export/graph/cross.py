"""Attention of encoders, and of decoders that read what an encoder made.

T is the length of the encoder's input in tokens or frames, S the number of new tokens of the decoder.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnxscript import nn

from edge.export.graph.blocks import Step
from edge.export.graph.families.base import Biased, has_bias
from edge.export.graph.linear import Projections, linear
from edge.export.graph.weights import Weights
from edge.export.lower.base import Lowering, Value

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

    blocks: each layer's attention in the checkpoint. Returns per layer a key [1, H, T, D] and a value, as
    `CrossAttention` reads it: [1, H, D, T] for long inputs, else [1, H, T, D].
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
    ):
        super().__init__()
        self.heads = heads
        self.value_order = [0, 2, 3, 1] if long_input else [0, 2, 1, 3]
        _, *members, _ = names
        group = f"{ENCODER}.cross_attention"
        self.layers = nn.ModuleList(
            [Projections(weights, block, members, "kv_proj", group, bias=bias) for block in blocks]
        )

    def forward(self, op: Lowering, x: Value) -> list[tuple[Value, Value]]:
        return [self._layer(op, layer(op, x)) for layer in self.layers]

    def _layer(self, op: Lowering, parts: list[Value]) -> tuple[Value, Value]:
        key, value = parts if len(parts) == 2 else op.Split(parts[0], axis=-1, num_outputs=2, _outputs=2)
        key, value = (op.Reshape(part, [1, 0, self.heads, -1]) for part in (key, value))
        return op.Transpose(key, perm=[0, 2, 1, 3]), op.Transpose(value, perm=self.value_order)
