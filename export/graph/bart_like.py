"""The layers of BART's lineage (mBART, Marian, M2M100, Pegasus, Whisper): layer norms, biases, plain feed-forward.

They have one form in two orders: a block's input is normed (pre-norm), or the sum of input and output is (post-norm).
"""

from __future__ import annotations

from typing import Any

from onnxscript import nn

from edge.export.facts.family import Biased, Heads
from edge.export.graph.blocks import MLP, Attention, ResidualLayerNorm
from edge.export.graph.cross import ENCODER, CrossAttention, CrossKeysValues, EncoderAttention
from edge.export.graph.linear import Embedding
from edge.export.graph.stacks import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderDecoder,
    EncoderLayer,
    Positions,
    PostNorm,
    Residual,
    TextStart,
)
from edge.export.graph.weights import Weights
from edge.manifest import Dims, EncoderDims

NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")
LONG = 512  # tokens; longer inputs have another form of cross-attention
LOGITS_BIAS = "final_logits_bias"  # [1, V]


def encoder_layer(
    config: Any, weights: Weights, i: int, *, pre: bool, bias: Biased = True, parts: int = 1
) -> EncoderLayer:
    """Return an encoder layer. `config` is any of these families'; bias: the projections of attention that have one;
    parts: see `MLP`."""
    name, heads, long = f"model.encoder.layers.{i}", config.encoder_attention_heads, long_input(config)
    scale, group, order = (config.d_model // heads) ** -0.5, f"{ENCODER}.feed_forward", Residual if pre else PostNorm
    attention = EncoderAttention(weights, f"{name}.self_attn", heads, scale, names=NAMES, bias=bias)
    mlp = MLP(weights, f"{name}.fc1", f"{name}.fc2", config.activation_function, group=group, parts=parts)
    return EncoderLayer(
        order(ResidualLayerNorm(weights, f"{name}.self_attn_layer_norm", many_rows=long), attention),
        order(ResidualLayerNorm(weights, f"{name}.final_layer_norm", many_rows=long), mlp),
    )


def decoder_layer(config: Any, weights: Weights, i: int, *, pre: bool, bias: Biased = True) -> DecoderLayer:
    """Return a decoder layer; arguments as of `encoder_layer`."""
    name, heads, long = f"model.decoder.layers.{i}", config.decoder_attention_heads, long_input(config)
    dim, order = config.d_model // heads, Residual if pre else PostNorm
    attention = Attention(weights, f"{name}.self_attn", i, Heads(heads, heads, dim), names=NAMES, bias=bias)
    cross = CrossAttention(
        weights, f"{name}.encoder_attn", i, heads, dim**-0.5, names=NAMES, bias=bias, long_input=long
    )
    mlp = MLP(weights, f"{name}.fc1", f"{name}.fc2", config.activation_function)
    return DecoderLayer(
        order(ResidualLayerNorm(weights, f"{name}.self_attn_layer_norm"), attention),
        order(ResidualLayerNorm(weights, f"{name}.final_layer_norm"), mlp),
        order(ResidualLayerNorm(weights, f"{name}.encoder_attn_layer_norm"), cross),
    )


def cross_keys_values(config: Any, weights: Weights, *, bias: Biased = True) -> CrossKeysValues:
    """Return the module that projects the encoder's output to keys and values of every decoder layer."""
    readers = [f"model.decoder.layers.{i}.encoder_attn" for i in range(config.decoder_layers)]
    heads = config.decoder_attention_heads
    return CrossKeysValues(weights, readers, heads, names=NAMES, bias=bias, long_input=long_input(config))


def long_input(config: Any) -> bool:
    """True if the encoder reads long inputs: documents, or audio."""
    frames = getattr(config, "max_source_positions", None)
    return bool((frames or config.max_position_embeddings) > LONG)


def sines(weights: Weights) -> tuple[Positions, Positions]:
    """The sinusoidal positions of encoder and decoder, which are the same and stored once."""
    table = weights.read("model.encoder.embed_positions.weight")
    return Positions(weights, "model.positions", table), Positions(weights, "model.positions", table)


def logits_bias(weights: Weights) -> nn.Parameter | None:
    """Return the bias of the logits; None if it is all zeros, as in most models."""
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
        norm = ResidualLayerNorm(weights, f"model.{half}.layernorm_embedding") if start_norm else None
        return TextStart(Embedding(weights, embedding, scale=scale), own_positions, norm)

    def end(half: str) -> ResidualLayerNorm | None:
        many = half == "encoder" and long_input(config)
        return ResidualLayerNorm(weights, f"model.{half}.layer_norm", many_rows=many) if final_norm else None

    encoder = Encoder(
        start("encoder", names[0], positions[0]),
        [encoder_layer(config, weights, i, pre=pre) for i in range(config.encoder_layers)],
        cross_keys_values(config, weights),
        norm=end("encoder"),
        absolute=True,
    )
    decoder = Decoder(
        weights,
        start("decoder", names[1], positions[1]),
        [decoder_layer(config, weights, i, pre=pre) for i in range(config.decoder_layers)],
        names[2],
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
