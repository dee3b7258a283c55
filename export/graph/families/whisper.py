"""Whisper and Distil-Whisper: log-mel features into a pre-norm encoder, learned positions in a pre-norm decoder."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from onnxscript import nn
from transformers import WhisperConfig

from edge.export.facts.family import Family
from edge.export.graph.bart_like import NAMES, cross_keys_values, decoder_layer, encoder_layer
from edge.export.graph.blocks import ResidualLayerNorm, activation_of
from edge.export.graph.cross import ENCODER
from edge.export.graph.linear import Embedding
from edge.export.graph.operators import Lowering, Value
from edge.export.graph.stacks import Decoder, Encoder, EncoderDecoder, Positions, TextStart
from edge.export.graph.weights import Weights
from edge.manifest import Dims, EncoderDims

NAME = "whisper"
BIASED = tuple(name for name in NAMES if name != "k_proj")
GROUP = f"{ENCODER}.convolution"
# Matrices that read rows in 16 bits: the encoder's first layer, and the decoder's keys and values. What rounding rows
# to 8 bits changes in Whisper base's keys and values, 5.7%, comes from these: 4.2% from what the query, key and value
# of the first layer read, 2.3% from its output, 2.1% from the decoder's, 1.4% from its feed-forward block, 0.7% from
# the next one's.
PRECISE = r"\.encoder\.layers\.0\.|\.encoder_attn\.[kv]_proj\."
PARTS = 2  # of an encoder's feed-forward blocks: then 30 s need no more memory there than in attention


def encoder_decoder(config: WhisperConfig, weights: Weights, max_context: int) -> EncoderDecoder:
    frames = config.max_source_positions
    parts = 1 if frames % PARTS else PARTS
    encoder = Encoder(
        AudioStart(config, weights),
        [encoder_layer(config, weights, i, pre=True, bias=BIASED, parts=parts) for i in range(config.encoder_layers)],
        cross_keys_values(config, weights, bias=BIASED),
        norm=ResidualLayerNorm(weights, "model.encoder.layer_norm", many_rows=True),
    )
    tokens = "model.decoder.embed_tokens"
    scale = config.d_model**0.5 if config.scale_embedding else None
    decoder = Decoder(
        weights,
        TextStart(
            Embedding(weights, tokens, scale=scale),
            Positions(weights, "decoder.positions", weights.read("model.decoder.embed_positions.weight")),
        ),
        [decoder_layer(config, weights, i, pre=True, bias=BIASED) for i in range(config.decoder_layers)],
        tokens if config.tie_word_embeddings else "proj_out",
        norm=ResidualLayerNorm(weights, "model.decoder.layer_norm"),
    )
    width, heads = config.d_model, config.decoder_attention_heads
    return EncoderDecoder(
        encoder,
        decoder,
        Dims(config.decoder_layers, width, config.decoder_ffn_dim, heads, heads, width // heads, config.vocab_size),
        EncoderDims(config.encoder_layers, width, config.encoder_attention_heads, config.max_source_positions, "audio"),
        bins=config.num_mel_bins,
    )


class AudioStart(nn.Module):
    """Features [1, M, 2 T] to embeddings [1, T, H]: two convolutions over time, of which the second halves it."""

    def __init__(self, config: WhisperConfig, weights: Weights):
        super().__init__()
        self.conv1 = Convolution(config, weights, "model.encoder.conv1", 1)
        self.conv2 = Convolution(config, weights, "model.encoder.conv2", 2)
        table = weights.read("model.encoder.embed_positions.weight")
        self.positions = weights.table("encoder.positions", table.astype(np.float32))

    def forward(self, op: Lowering, features: Value, positions: Value | None) -> Value:
        x = op.Transpose(features, perm=[0, 2, 1])  # [1, 2 T, M]
        x = self.conv2(op, self.conv1(op, x))
        return op.Add(x, op.first_rows(self.positions, x))


class Convolution(nn.Module):
    """A convolution over each frame [1, T, C] and its two neighbours, and the activation: [1, T / stride, H]."""

    def __init__(self, config: WhisperConfig, weights: Weights, name: str, stride: int):
        super().__init__()
        self.stride = stride
        self.activation = activation_of(config.activation_function)
        self.weight = weights.vector([f"{name}.weight"], f"{name}.weight", GROUP, stacked_taps)
        self.bias = weights.vector([f"{name}.bias"], f"{name}.bias", GROUP)

    def forward(self, op: Lowering, x: Value) -> Value:
        return self.activation(op, op.convolution(x, self.weight, self.bias, stride=self.stride))


def stacked_taps(w: NDArray[np.float32]) -> NDArray[np.float32]:
    """A convolution's weight [H, C, 3] as the second operand of a product with [T, 3 C]."""
    return np.ascontiguousarray(w.transpose(2, 1, 0).reshape(-1, len(w)))


FAMILY = Family(encoder_decoder, precise=PRECISE)
