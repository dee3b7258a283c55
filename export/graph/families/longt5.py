"""LongT5: T5 v1.1 whose encoder attends to near tokens alone, and in its other form to blocks of all tokens as well.

All scores are computed, and those of far tokens hidden: exact, and memory grows with the square of a text's length.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnxscript import nn

from edge.errors import ExportError
from edge.export.facts.family import Family
from edge.export.graph.blocks import RMSNorm
from edge.export.graph.cross import EncoderAttention
from edge.export.graph.families import t5
from edge.export.graph.operators import Lowering, Value
from edge.export.graph.stacks import EncoderDecoder, arange
from edge.export.graph.weights import Weights
from edge.runtime.engine.tree import BLOCKED

NAME = "longt5"
NEAR, BLOCKS = "local", "transient-global"  # the two forms, and what attention is called in each
ATTENTION = {NEAR: "LocalSelfAttention", BLOCKS: "TransientGlobalSelfAttention"}


def encoder_decoder(config: Any, weights: Weights, max_context: int) -> EncoderDecoder:
    form = config.encoder_attention_type
    if form not in ATTENTION:
        raise ExportError(f"The model sets encoder_attention_type to {form!r}; LongT5 has {NEAR} and {BLOCKS}.")
    near = t5.EncoderBias(weights, near_values(config, weights))
    return t5.stacks(
        config,
        weights,
        max_context,
        near_attention if form == NEAR else BlockAttention,
        near if form == NEAR else Places(config, weights, near),
        t5.DecoderBias(config, weights, max_context),
        scaled=config.scale_decoder_outputs,
        long_input=True,
    )


def near_values(config: Any, weights: Weights) -> NDArray[np.float32]:
    """The bias [H, 2 reach + 1] at the distances, key minus query, from -reach to reach: the first that are hidden."""
    reach, name = config.local_radius + 1, ATTENTION[config.encoder_attention_type]
    values = t5.bias_values(config, weights, "encoder", np.arange(-reach, reach + 1), 0, bidirectional=True, name=name)
    values[:, [0, -1]] = BLOCKED
    return values


def near_attention(config: Any, weights: Weights, i: int) -> EncoderAttention:
    """Attention of layer i to near tokens alone."""
    name = f"encoder.block.{i}.layer.0.{ATTENTION[NEAR]}"
    return EncoderAttention(weights, name, config.num_heads, t5.SCALE, names=t5.PROJ)


class Near(NamedTuple):
    """What attention reads besides the tokens T: the scores' bias [1, H, T, T + G], and which tokens are in which of
    the G blocks, [G, T]."""

    bias: Value
    members: Value


class Places(nn.Module):
    """Module that computes `Near` from the token ids. Tokens after the last whole block belong to it."""

    def __init__(self, config: Any, weights: Weights, near: t5.EncoderBias):
        super().__init__()
        self.near, self.size = near, config.global_block_size
        self.reach = reach = config.relative_attention_max_distance
        of_blocks = partial(t5.bias_values, config, weights, "encoder", np.arange(-reach, reach + 1), 0)
        values = of_blocks(bidirectional=True, name=ATTENTION[BLOCKS], table="global_relative_attention_bias")
        self.table = weights.table("encoder.block_bias", values)

    def forward(self, op: Lowering, ids: Value) -> Near:
        one, size = op.Constant(value_int=1), op.Constant(value_int=self.size)
        length = op.Squeeze(op.Shape(ids, start=1, end=2), [0])
        count = op.Div(length, size)
        blocks = op.Range(op.Constant(value_int=0), count, one)  # [G]
        own = op.Unsqueeze(op.Min(op.Div(arange(op, ids), size), op.Sub(count, one)), [1])  # [T, 1]
        index = t5.column(op, op.Sub(op.Unsqueeze(blocks, [0]), own), self.reach)  # [T, G]
        bias = op.Concat(self.near(op, ids), op.Unsqueeze(op.Gather(self.table, index, axis=1), [0]), axis=3)
        members = op.Equal(op.Unsqueeze(blocks, [1]), op.Transpose(own, perm=[1, 0]))
        return Near(bias, op.Cast(members, to=ir.DataType.FLOAT))


class BlockAttention(EncoderAttention):
    """Attention of layer i to near tokens, and to the normed sum of each block of tokens, projected as tokens are."""

    def __init__(self, config: Any, weights: Weights, i: int):
        name = f"encoder.block.{i}.layer.0.{ATTENTION[BLOCKS]}"
        super().__init__(weights, name, config.num_heads, t5.SCALE, names=t5.PROJ)
        self.norm = RMSNorm(weights, f"{name}.global_input_layer_norm", config.layer_norm_epsilon)

    def forward(self, op: Lowering, x: Value, near: Any) -> Value:
        sums = self.norm(op, op.MatMul(near.members, x))  # [1, G, H]
        parts = self.qkv_proj(op, op.Concat(x, sums, axis=1))
        query, key, value = parts if len(parts) == 3 else op.Split(parts[0], axis=-1, num_outputs=3, _outputs=3)
        query = op.Slice(query, [0], op.Shape(x, start=1, end=2), [1])  # of the tokens
        return self.out_proj(op, op.full_attention(query, key, value, near.bias, heads=self.heads, scale=self.scale))


FAMILY = Family(encoder_decoder, cross=t5.CROSS)
