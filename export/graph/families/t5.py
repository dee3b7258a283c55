"""T5, v1.1, Flan-T5, mT5, ByT5, CodeT5: pre-norm, scores biased by relative position, gated or plain feed-forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnxscript import nn
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Attention

from edge.export.graph.blocks import Attention, GatedMLP, Heads, ResidualNorm, Step, Stream, take
from edge.export.graph.cross import (
    ENCODER,
    MLP,
    CrossAttention,
    CrossDecoder,
    CrossKeysValues,
    Encoder,
    EncoderAttention,
    EncoderDecoder,
    Names,
    TextStart,
    arange,
)
from edge.export.graph.families.base import Family
from edge.export.graph.linear import Embedding
from edge.export.graph.step import ScoresBias
from edge.export.graph.weights import Weights
from edge.export.lower.base import Lowering, Value
from edge.manifest import Dims, EncoderDims

NAMES = ("t5", "mt5")
PROJ = Names("q", "k", "v", "o")
CROSS = r"\.EncDecAttention\.[kv]\."  # makes keys and values of the encoder's output
SCALE = 1.0  # T5 folds the scale of its scores into its weights


def encoder_decoder(config: T5Config, weights: Weights, max_context: int) -> EncoderDecoder:
    return stacks(
        config,
        weights,
        max_context,
        [EncoderLayer(config, weights, i) for i in range(config.num_layers)],
        [DecoderLayer(config, weights, i) for i in range(config.num_decoder_layers)],
        EncoderBias(config, weights),
        DecoderBias(config, weights, max_context),
        scaled=getattr(config, "scale_decoder_outputs", False),
    )


def stacks(
    config: Any,
    weights: Weights,
    max_context: int,
    encoder_layers: Sequence[nn.Module],
    decoder_layers: Sequence[nn.Module],
    encoder_bias: nn.Module,
    decoder_bias: ScoresBias,
    *,
    scaled: bool,
) -> EncoderDecoder:
    """Both halves of these layers, with embeddings, final norms and the head.

    scaled: whether what the head reads is divided by the square root of its width.
    """
    heads, eps = config.num_heads, config.layer_norm_epsilon
    readers = [f"decoder.block.{i}.layer.1.EncDecAttention" for i in range(config.num_decoder_layers)]
    encoder = Encoder(
        TextStart(Embedding(weights, "shared")),
        encoder_layers,
        CrossKeysValues(weights, readers, heads, names=PROJ, long_input=False),
        norm=ResidualNorm(weights, "encoder.final_layer_norm", eps),
        bias=encoder_bias,
    )
    decoder = CrossDecoder(
        weights,
        TextStart(Embedding(weights, "shared")),
        decoder_layers,
        "shared.weight" if config.tie_word_embeddings else "lm_head.weight",
        norm=ResidualNorm(weights, "decoder.final_layer_norm", eps),
        scale=config.d_model**-0.5 if scaled else 1.0,
    )
    return EncoderDecoder(
        encoder,
        decoder,
        Dims(config.num_decoder_layers, config.d_model, config.d_ff, heads, heads, config.d_kv, config.vocab_size),
        EncoderDims(config.num_layers, config.d_model, heads, max_context, "text"),
        bias=decoder_bias,
    )


class EncoderLayer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: T5Config, weights: Weights, i: int):
        super().__init__()
        name, eps = f"encoder.block.{i}", config.layer_norm_epsilon
        self.attention_norm = ResidualNorm(weights, f"{name}.layer.0.layer_norm", eps)
        self.attention = EncoderAttention(weights, f"{name}.layer.0.SelfAttention", config.num_heads, SCALE, names=PROJ)
        self.mlp_norm = ResidualNorm(weights, f"{name}.layer.1.layer_norm", eps)
        self.mlp = mlp(config, weights, f"{name}.layer.1.DenseReluDense", f"{ENCODER}.feed_forward")

    def forward(self, op: Lowering, stream: Stream, bias: Value | None) -> Stream:
        h, x = self.attention_norm(op, stream)
        h, x = self.mlp_norm(op, Stream(x, self.attention(op, h, bias)))
        return Stream(x, self.mlp(op, h))


class DecoderLayer(nn.Module):
    """x + attention(norm(x)), x + cross_attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: T5Config, weights: Weights, i: int):
        super().__init__()
        name, eps, heads = f"decoder.block.{i}", config.layer_norm_epsilon, config.num_heads
        self.attention_norm = ResidualNorm(weights, f"{name}.layer.0.layer_norm", eps)
        self.attention = Attention(
            weights,
            f"{name}.layer.0.SelfAttention",
            i,
            Heads(heads, heads, config.d_kv),
            rope=None,
            projections=(PROJ.q, PROJ.k, PROJ.v),
            output=PROJ.out,
            scale=SCALE,
        )
        self.cross_norm = ResidualNorm(weights, f"{name}.layer.1.layer_norm", eps)
        self.cross = CrossAttention(
            weights, f"{name}.layer.1.EncDecAttention", i, heads, SCALE, names=PROJ, long_input=False
        )
        self.mlp_norm = ResidualNorm(weights, f"{name}.layer.2.layer_norm", eps)
        self.mlp = mlp(config, weights, f"{name}.layer.2.DenseReluDense", "feed_forward")

    def forward(self, op: Lowering, stream: Stream, step: Step, rows: Value | None = None) -> Stream:
        h, x = self.attention_norm(op, stream)
        h = self.attention(op, h, step, rows)
        h, x = self.cross_norm(op, Stream(take(op, x, rows), h))
        stream = Stream(x, self.cross(op, h, step))
        step.cuts.append(stream)
        h, x = self.mlp_norm(op, stream)
        return Stream(x, self.mlp(op, h))


def mlp(config: T5Config, weights: Weights, name: str, group: str) -> nn.Module:
    activation = config.dense_act_fn
    if config.is_gated_act:
        return GatedMLP(weights, name, activation, projections=("wi_0", "wi_1"), output="wo", group=group)
    return MLP(weights, f"{name}.wi", f"{name}.wo", activation, group=group, bias=False)


class EncoderBias(nn.Module):
    """The scores' bias [1, H, T, T] by how far the key stands behind or before the query."""

    def __init__(self, config: T5Config, weights: Weights):
        super().__init__()
        self.reach = config.relative_attention_max_distance
        self.table = bias_table(config, weights, "encoder", distances(self.reach), bidirectional=True)

    def forward(self, op: Lowering, ids: Value) -> Value:
        return op.Unsqueeze(op.Gather(self.table, distance_index(op, ids, self.reach), axis=1), [0])


def distances(reach: int) -> torch.Tensor:
    """The distances [2 reach + 1], key less query, that an encoder tells apart."""
    return torch.arange(-reach, reach + 1)


def distance_index(op: Lowering, ids: Value, reach: int) -> Value:
    """The place [T, T] in `distances` of each key's from each query; beyond `reach` all are one."""
    at = arange(op, ids)
    distance = op.Sub(op.Unsqueeze(at, [0]), op.Unsqueeze(at, [1]))  # [T, T], key less query
    low, high = op.Constant(value_int=-reach), op.Constant(value_int=reach)
    return op.Sub(op.Min(op.Max(distance, low), high), low)


class DecoderBias(nn.Module):
    """The bias [1, H, S, T] by how far the key stands behind the query, on top of the host's.

    The table has an entry for every distance, so that a step needs no clipping. A key behind the query has a negative
    one, which reads from the table's end; no token attends there.
    """

    def __init__(self, config: T5Config, weights: Weights, max_context: int):
        super().__init__()
        self.table = bias_table(config, weights, "decoder", -torch.arange(max_context), bidirectional=False)

    def forward(self, op: Lowering, step: Step, keys: Value, given: Value) -> Value:
        distance = op.Sub(op.Reshape(step.position_ids, [-1, 1]), keys)  # [S, T]
        return op.Add(op.Gather(self.table, distance, axis=1), given)


def bias_table(
    config: Any, weights: Weights, stack: str, distances: torch.Tensor, *, bidirectional: bool, layer: int = 0
) -> nn.Parameter:
    """A parameter of `bias_values`."""
    values = bias_values(config, weights, stack, distances, bidirectional=bidirectional, layer=layer)
    return weights.table(f"{stack}.{layer}.relative_bias", values)


def bias_values(
    config: Any, weights: Weights, stack: str, distances: torch.Tensor, *, bidirectional: bool, layer: int = 0
) -> NDArray[np.float32]:
    """The learned bias [H, distances] of each distance, key less query, in a layer: buckets widen with it."""
    buckets = T5Attention._relative_position_bucket(
        distances,
        bidirectional=bidirectional,
        num_buckets=config.relative_attention_num_buckets,
        max_distance=config.relative_attention_max_distance,
    ).numpy()
    learned = weights.read(f"{stack}.block.{layer}.layer.0.SelfAttention.relative_attention_bias.weight")
    return np.ascontiguousarray(learned[buckets].T)


FAMILY = Family(encoder_decoder, cross=CROSS)
