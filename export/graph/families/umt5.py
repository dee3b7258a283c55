"""umT5: T5 v1.1 whose every layer has a bias by relative position of its own, in place of the first layer's for all."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from onnxscript import nn
from transformers import UMT5Config

from edge.export.graph.blocks import Step, Stream
from edge.export.graph.cross import EncoderDecoder
from edge.export.graph.families import t5
from edge.export.graph.families.base import Family
from edge.export.graph.weights import Weights
from edge.export.lower.base import Lowering, Value

NAME = "umt5"


def encoder_decoder(config: UMT5Config, weights: Weights, max_context: int) -> EncoderDecoder:
    bias = DecoderBiases(config, weights, max_context)
    return t5.stacks(
        config,
        weights,
        max_context,
        [EncoderLayer(config, weights, i) for i in range(config.num_layers)],
        [DecoderLayer(config, weights, i, bias.layers) for i in range(config.num_decoder_layers)],
        Distances(config),
        bias,
        # As they were trained. transformers 5 calls every umT5 tied, and scales those whose head is their own, too.
        scaled=config.tie_word_embeddings,
    )


class Distances(nn.Module):
    """Which column [T, T] of a layer's table holds the bias of each key for each query."""

    def __init__(self, config: UMT5Config):
        super().__init__()
        self.reach = config.relative_attention_max_distance

    def forward(self, op: Lowering, ids: Value) -> Value:
        return t5.distance_index(op, ids, self.reach)


class EncoderLayer(t5.EncoderLayer):
    """T5's, with a table [H, distances] of its own."""

    def __init__(self, config: UMT5Config, weights: Weights, i: int):
        super().__init__(config, weights, i)
        distances = t5.distances(config.relative_attention_max_distance)
        self.table = t5.bias_table(config, weights, "encoder", distances, bidirectional=True, layer=i)

    def forward(self, op: Lowering, stream: Stream, bias: Value | None) -> Stream:
        return super().forward(op, stream, op.Unsqueeze(op.Gather(self.table, bias, axis=1), [0]))


class DecoderBiases(nn.Module):
    """Each layer's bias [1, H, S, T], on top of the host's; see `t5.DecoderBias`. All are read from one table."""

    def __init__(self, config: UMT5Config, weights: Weights, max_context: int):
        super().__init__()
        layers = range(config.num_decoder_layers)
        behind = -torch.arange(max_context)
        values = [t5.bias_values(config, weights, "decoder", behind, bidirectional=False, layer=i) for i in layers]
        self.table = weights.table("decoder.relative_biases", np.concatenate(values))  # [layers H, distances]
        self.layers: list[Value] = []  # each layer's, of the graph that is being built

    def forward(self, op: Lowering, step: Step, keys: Value, given: Value) -> Value:
        distance = op.Sub(op.Reshape(step.position_ids, [-1, 1]), keys)  # [S, T]
        biases = op.Add(op.Gather(self.table, distance, axis=1), given)  # [1, layers H, S, T]
        count = len(step.past)
        self.layers[:] = [biases] if count == 1 else op.Split(biases, axis=1, num_outputs=count, _outputs=count)
        return given


class DecoderLayer(t5.DecoderLayer):
    """T5's, with its own of all layers' biases, which are there before it runs."""

    def __init__(self, config: UMT5Config, weights: Weights, i: int, biases: list[Value]):
        super().__init__(config, weights, i)
        self.layer = i
        self.biases = biases

    def forward(self, op: Lowering, stream: Stream, step: Step, rows: Value | None = None) -> Stream:
        own = dataclasses.replace(step, attention_bias=self.biases[self.layer])
        return super().forward(op, stream, own, rows)


FAMILY = Family(encoder_decoder, cross=t5.CROSS)
