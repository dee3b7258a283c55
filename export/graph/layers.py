"""The layers of BART's lineage (mBART, Marian, M2M100, Pegasus, Whisper): layer norms, biases, plain feed-forward.

They have one form in two orders: a block's input is normed (pre-norm), or the sum of input and output is (post-norm).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnxscript import nn

from edge.export.graph.blocks import Attention, Heads, Step, Stream, take
from edge.export.graph.cross import (
    ENCODER,
    MLP,
    CrossAttention,
    CrossDecoder,
    CrossKeysValues,
    Encoder,
    EncoderAttention,
    EncoderDecoder,
    LayerNorm,
    Names,
    Positions,
    ResidualLayerNorm,
    TextStart,
)
from edge.export.graph.linear import Embedding
from edge.export.graph.weights import Weights
from edge.export.lower.base import Lowering, Value
from edge.manifest import Dims, EncoderDims

NAMES = Names()
LONG = 512  # tokens; longer inputs have another form of cross-attention
LOGITS_BIAS = "final_logits_bias"  # [1, V]
BIASED = (NAMES.q, NAMES.k, NAMES.v, NAMES.out)  # the projections with a bias; Whisper's keys have none


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward. `config` is any of these families'; `parts`: see `MLP`."""

    def __init__(
        self, config: Any, weights: Weights, i: int, *, pre: bool, biased: tuple[str, ...] = BIASED, parts: int = 1
    ):
        super().__init__()
        name, heads = f"model.encoder.layers.{i}", config.encoder_attention_heads
        scale = (config.d_model // heads) ** -0.5
        self.pre = pre
        self.attention = EncoderAttention(weights, f"{name}.self_attn", heads, scale, biased=biased)
        self.attention_norm = ResidualLayerNorm(weights, f"{name}.self_attn_layer_norm", many_rows=long_input(config))
        self.mlp = MLP(
            weights,
            f"{name}.fc1",
            f"{name}.fc2",
            config.activation_function,
            group=f"{ENCODER}.feed_forward",
            parts=parts,
        )
        self.mlp_norm = ResidualLayerNorm(weights, f"{name}.final_layer_norm", many_rows=long_input(config))

    def forward(self, op: Lowering, stream: Stream, bias: Value | None) -> Stream:
        stream = add(op, self.attention_norm, self.pre, stream, lambda h: self.attention(op, h, bias))
        return add(op, self.mlp_norm, self.pre, stream, lambda h: self.mlp(op, h))


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention and feed-forward."""

    def __init__(self, config: Any, weights: Weights, i: int, *, pre: bool, biased: tuple[str, ...] = BIASED):
        super().__init__()
        name, heads = f"model.decoder.layers.{i}", config.decoder_attention_heads
        dim = config.d_model // heads
        self.pre = pre
        self.attention = Attention(
            weights,
            f"{name}.self_attn",
            i,
            Heads(heads, heads, dim),
            rope=None,
            projections=(NAMES.q, NAMES.k, NAMES.v),
            output=NAMES.out,
            bias=[p for p in biased if p != NAMES.out],
            output_bias=NAMES.out in biased,
        )
        self.attention_norm = ResidualLayerNorm(weights, f"{name}.self_attn_layer_norm")
        self.cross = CrossAttention(
            weights, f"{name}.encoder_attn", i, heads, dim**-0.5, biased=biased, long_input=long_input(config)
        )
        self.cross_norm = ResidualLayerNorm(weights, f"{name}.encoder_attn_layer_norm")
        self.mlp = MLP(weights, f"{name}.fc1", f"{name}.fc2", config.activation_function)
        self.mlp_norm = ResidualLayerNorm(weights, f"{name}.final_layer_norm")

    def forward(self, op: Lowering, stream: Stream, step: Step, rows: Value | None = None) -> Stream:
        stream = add(op, self.attention_norm, self.pre, stream, lambda h: self.attention(op, h, step, rows), rows)
        stream = add(op, self.cross_norm, self.pre, stream, lambda h: self.cross(op, h, step))
        step.cuts.append(stream)
        return add(op, self.mlp_norm, self.pre, stream, lambda h: self.mlp(op, h))


def add(
    op: Lowering, norm: nn.Module, pre: bool, stream: Stream, block: Callable[[Value], Value], rows: Value | None = None
) -> Stream:
    """The stream with what `block` makes of it; `rows` says which rows the block keeps."""
    if pre:
        h, x = norm(op, stream)
        return Stream(take(op, x, rows), block(h))
    normed, _ = norm(op, Stream(take(op, stream.x, rows), block(stream.x)))
    return Stream(normed)


def cross_keys_values(config: Any, weights: Weights, *, biased: tuple[str, ...] = BIASED) -> CrossKeysValues:
    """What the encoder hands to every decoder layer."""
    readers = [f"model.decoder.layers.{i}.encoder_attn" for i in range(config.decoder_layers)]
    heads = config.decoder_attention_heads
    return CrossKeysValues(weights, readers, heads, biased=biased, long_input=long_input(config))


def long_input(config: Any) -> bool:
    """Whether the encoder reads long inputs: documents, or audio."""
    frames = getattr(config, "max_source_positions", None)
    return bool((frames or config.max_position_embeddings) > LONG)


def sines(weights: Weights) -> tuple[Positions, Positions]:
    """The sinusoidal positions of encoder and decoder, which are the same and stored once."""
    table = weights.read("model.encoder.embed_positions.weight")
    return Positions(weights, "model.positions", table), Positions(weights, "model.positions", table)


def logits_bias(weights: Weights) -> nn.Parameter | None:
    """What is added to the logits; most models have zeros there."""
    if not weights.read(LOGITS_BIAS).any():
        return None
    return weights.vector([LOGITS_BIAS], LOGITS_BIAS, "head", lambda bias: bias.reshape(-1))


def text_model(
    config: Any,
    weights: Weights,
    positions: tuple[Positions, Positions],
    *,
    pre: bool,
    start_norm: bool = False,
    final_norm: bool = False,
    bias: bool = True,
    names: tuple[str, str, str] | None = None,
) -> EncoderDecoder:
    """A model of these layers that reads and writes text.

    positions: of the encoder and the decoder. start_norm: what the layers begin with is normed; final_norm: and what
    they end with. bias: something is added to the logits. names: the matrices of both embeddings and of the head; by
    default one for all where the configuration ties them.
    """
    if names is None:
        shared = "model.shared"
        own = "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"
        names = (shared, shared, shared) if config.tie_word_embeddings else own
    scale = config.d_model**0.5 if config.scale_embedding else None

    def start(half: str, embedding: str, own_positions: Positions) -> TextStart:
        norm = LayerNorm(weights, f"model.{half}.layernorm_embedding") if start_norm else None
        return TextStart(Embedding(weights, embedding, scale=scale), own_positions, norm)

    def end(half: str) -> ResidualLayerNorm | None:
        many = half == "encoder" and long_input(config)
        return ResidualLayerNorm(weights, f"model.{half}.layer_norm", many_rows=many) if final_norm else None

    encoder = Encoder(
        start("encoder", names[0], positions[0]),
        [EncoderLayer(config, weights, i, pre=pre) for i in range(config.encoder_layers)],
        cross_keys_values(config, weights),
        norm=end("encoder"),
        absolute=True,
    )
    decoder = CrossDecoder(
        weights,
        start("decoder", names[1], positions[1]),
        [DecoderLayer(config, weights, i, pre=pre) for i in range(config.decoder_layers)],
        f"{names[2]}.weight",
        norm=end("decoder"),
        head_bias=logits_bias(weights) if bias else None,
    )
    heads = config.decoder_attention_heads
    vocabulary = weights.rows(f"{names[2]}.weight")
    return EncoderDecoder(
        encoder,
        decoder,
        Dims(
            config.decoder_layers,
            config.d_model,
            config.decoder_ffn_dim,
            heads,
            heads,
            config.d_model // heads,
            vocabulary,
        ),
        EncoderDims(
            config.encoder_layers,
            config.d_model,
            config.encoder_attention_heads,
            config.max_position_embeddings,
            "text",
        ),
    )
