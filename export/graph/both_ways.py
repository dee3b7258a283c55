"""Attention over a whole text with rotary positions, and texts that go through a decoder's layers at once.

B is the number of texts, T of tokens of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
from onnxscript import nn

from edge.errors import ExportError
from edge.export.facts.family import QKVO, Biased, Heads, has_bias
from edge.export.graph.blocks import Attention, Step, Stream
from edge.export.graph.linear import Projections, linear
from edge.export.graph.operators import Lowering, Value, scalar
from edge.export.graph.rope import RotaryTable
from edge.export.graph.stacks import Decoder, arange, finish
from edge.export.graph.weights import Weights
from edge.runtime.engine.tree import BLOCKED

INT32 = ir.DataType.INT32


class BothWays(nn.Module):
    """Attention of each token to all others, or to those fewer than `window` away: of two numbers the first counts
    before it, the second after it. Other arguments are those of `Attention`; its layers read the step's rotary tables
    and, in `layer_biases`, what keeps others out of the window. group: of its weights in the manifest."""

    def __init__(
        self,
        weights: Weights,
        name: str,
        layer: int,
        heads: Heads,
        *,
        names: Sequence[str] = QKVO,
        bias: Biased = False,
        rope: str | None = None,
        window: int | tuple[int, int] | None = None,
        qk_norm: Callable[[str, int], nn.Module] | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        group: str = "attention",
    ):
        super().__init__()
        if softcap is not None:
            raise ExportError("Attention both ways with bounded scores is exported of T5Gemma alone.")
        self.layer, self.heads, self.rope, self.window = layer, heads, rope, window
        *inputs, output = names
        self.qkv_proj = Projections(weights, name, inputs, "qkv_proj", group, bias=bias)
        self.o_proj = linear(weights, f"{name}.{output}", group, bias=has_bias(bias, output))
        self.scale = heads.dim**-0.5 if scale is None else scale
        self.q_norm = None if qk_norm is None else qk_norm(f"{name}.q_norm", heads.query)
        self.k_norm = None if qk_norm is None else qk_norm(f"{name}.k_norm", heads.key_value)

    def forward(self, op: Lowering, x: Value, step: Step, rows: Value | None = None) -> Value:
        assert rows is None, "all tokens of a text go through every layer"
        parts = self.qkv_proj(op, x)
        if len(parts) == 1:
            sizes = [count * self.heads.dim for count in (self.heads.query, *[self.heads.key_value] * 2)]
            parts = op.Split(parts[0], sizes, axis=-1, _outputs=3)
        query, key, value = parts
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(op, query), self.k_norm(op, key)
        if self.rope is not None:
            table, counts = step.rope[self.rope], (self.heads.query, self.heads.key_value)
            query, key = (
                op.rotate(part, step.position_ids, table, heads=count)
                for part, count in zip((query, key), counts, strict=True)
            )
        key, value = self._for_each(op, key), self._for_each(op, value)
        bias = step.layer_biases.get(self.layer)
        return self.o_proj(op, op.full_attention(query, key, value, bias, heads=self.heads.query, scale=self.scale))

    def _for_each(self, op: Lowering, x: Value) -> Value:
        """Keys or values [B, T, heads * dim], those of a group of queries once for each."""
        own, group = self.heads.key_value, self.heads.query // self.heads.key_value
        if group == 1:
            return x
        apart = op.Reshape(x, [0, 0, own, 1, self.heads.dim])
        spread = op.Expand(apart, op.Constant(value_ints=[1, 1, 1, group, 1]))
        return op.Reshape(spread, [0, 0, self.heads.query * self.heads.dim])


class TextStep(nn.Module):
    """The step of whole texts: positions from 0 on, empty caches, rotary tables, and windows of layers that attend both
    ways. attention: of the layers, in their order."""

    def __init__(self, attention: Iterable[Attention | BothWays], rope: Mapping[str, RotaryTable]):
        super().__init__()
        self.attention = list(attention)
        self.rope = dict(rope)
        for name, table in self.rope.items():
            setattr(self, f"{name}_rope", table)

    def forward(self, op: Lowering, ids: Value) -> Step:
        at, count, length = arange(op, ids), op.Shape(ids, start=0, end=1), op.Shape(ids, start=1, end=2)
        total = op.Cast(length, to=INT32)
        last = op.Expand(op.Sub(total, op.Constant(value=ir.tensor([1], dtype=INT32))), count)
        step = Step(op.Expand(op.Unsqueeze(at, [0]), op.Shape(ids)), last, op.Squeeze(total, [0]), {})
        step.rope = {name: table(op) for name, table in self.rope.items()}
        empty: dict[tuple[int, int], Value] = {}
        biases: dict[int | tuple[int, int], Value] = {}
        for layer, attention in enumerate(self.attention):
            shape = attention.heads.key_value, attention.heads.dim
            if isinstance(attention, Attention) and shape not in empty:
                sizes = op.Concat(count, op.Constant(value_ints=[shape[0], 0, shape[1]]), axis=0)
                empty[shape] = op.ConstantOfShape(sizes)
            if shape in empty:
                step.past[layer] = empty[shape], empty[shape]
            if isinstance(attention, BothWays) and (window := attention.window) is not None:
                if window not in biases:
                    outside = _outside(op, op.Sub(op.Unsqueeze(at, [0]), op.Unsqueeze(at, [1])), window)
                    blocked, near = scalar(op, "blocked", float(BLOCKED)), scalar(op, "near", 0.0)
                    biases[window] = op.Unsqueeze(op.Where(outside, blocked, near), [0, 1])  # [1, 1, T, T]
                step.layer_biases[layer] = biases[window]
        return step


def _outside(op: Lowering, distance: Value, window: int | tuple[int, int]) -> Value:
    """True where a key is not in the window, by its distance from the query: below zero of those before it."""
    if isinstance(window, int):
        return op.GreaterOrEqual(op.Abs(distance), op.Constant(value_int=window))
    before, after = (op.Constant(value_int=size) for size in (-window[0], window[1]))
    return op.Or(op.LessOrEqual(distance, before), op.GreaterOrEqual(distance, after))


class OfDecoder(nn.Module):
    """The layers of a decoder, without its head, as an encoder: hidden states [B, T, H] of token ids [B, T]."""

    def __init__(self, decoder: Decoder):
        super().__init__()
        self.decoder = decoder
        layers: list[Any] = [*decoder.layers]
        self.step = TextStep([layer.attention.block for layer in layers], decoder.rope)

    def forward(self, op: Lowering, ids: Value) -> Value:
        step = self.step(op, ids)
        stream = Stream(self.decoder.start(op, ids, step.position_ids))
        for layer in self.decoder.layers:
            stream = layer(op, stream, step)
        return finish(op, stream, self.decoder.norm)
