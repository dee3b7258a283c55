"""umT5: T5 v1.1 whose every layer has a bias by relative position of its own, instead of the first layer's for all."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnxscript import nn

from edge.export.facts.family import Family
from edge.export.graph.blocks import Step
from edge.export.graph.families import t5
from edge.export.graph.operators import Lowering, Value
from edge.export.graph.stacks import EncoderDecoder
from edge.export.graph.weights import Weights

NAME = "umt5"


def encoder_decoder(config: Any, weights: Weights, max_context: int) -> EncoderDecoder:
    return t5.stacks(
        config,
        weights,
        max_context,
        BiasedAttention,
        Distances(config),
        DecoderBiases(config, weights, max_context),
        # As they were trained. transformers 5 calls every umT5 tied, and scales those whose head is their own, too.
        scaled=config.tie_word_embeddings,
    )


class Distances(nn.Module):
    """Module that computes the index [T, T] of the column in a layer's table with the bias of each key for each
    query."""

    def __init__(self, config: Any):
        super().__init__()
        self.reach = config.relative_attention_max_distance

    def forward(self, op: Lowering, ids: Value) -> Value:
        return t5.distance_index(op, ids, self.reach)


class BiasedAttention(t5.SelfAttention):
    """T5's self-attention of an encoder layer, with a separate table [H, distances]."""

    def __init__(self, config: Any, weights: Weights, i: int):
        super().__init__(config, weights, i)
        self.table = weights.table(f"encoder.{i}.relative_bias", t5.encoder_values(config, weights, i))

    def forward(self, op: Lowering, x: Value, bias: Value) -> Value:
        return super().forward(op, x, op.Unsqueeze(op.Gather(self.table, bias, axis=1), [0]))


class DecoderBiases(nn.Module):
    """Each layer's bias [1, H, S, T], plus the host's; see `t5.DecoderBias`. All are read from one table."""

    def __init__(self, config: Any, weights: Weights, max_context: int):
        super().__init__()
        values = [t5.decoder_values(config, weights, max_context, i) for i in range(config.num_decoder_layers)]
        self.table = weights.table("decoder.relative_biases", np.concatenate(values))  # [layers H, distances]

    def forward(self, op: Lowering, step: Step, keys: Value, given: Value) -> Value:
        distance = op.Sub(op.Reshape(step.position_ids, [-1, 1]), keys)  # [S, T]
        biases = op.Add(op.Gather(self.table, distance, axis=1), given)  # [1, layers H, S, T]
        count = len(step.past)
        split = [biases] if count == 1 else op.Split(biases, axis=1, num_outputs=count, _outputs=count)
        step.layer_biases.update(enumerate(split))
        return given


FAMILY = Family(encoder_decoder, cross=t5.CROSS)
