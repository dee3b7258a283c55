"""T5Gemma 2, its text part: an encoder and a decoder of Gemma 3's layers. The decoder's attention reads its own text
and the encoder's together, by one softmax over the keys of both, and with the same projections."""

from __future__ import annotations

from transformers import T5Gemma2Config

from edge.errors import ExportError
from edge.export.facts.family import QKVO, Family, heads_of, window_of
from edge.export.graph.blocks import Attention, GatedMLP, HeadNorm, Step, take
from edge.export.graph.both_ways import BothWays, TextStep
from edge.export.graph.cross import ENCODER, CrossKeysValues, GroupedReader
from edge.export.graph.families.t5gemma import NORM_OFFSET, Half, decoder_window, residual, residual_norm, sizes
from edge.export.graph.linear import Embedding
from edge.export.graph.operators import Lowering, Value
from edge.export.graph.rope import RotaryTable, cos_sin
from edge.export.graph.stacks import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderDecoder,
    EncoderLayer,
    TextStart,
)
from edge.export.graph.weights import Weights

NAME = "t5gemma2"
READER, WRITER = "model.encoder.text_model", "model.decoder"


def encoder_decoder(config: T5Gemma2Config, weights: Weights, max_context: int) -> EncoderDecoder:
    reader, writer = config.encoder.text_config, config.decoder
    for half in (reader, writer):
        if half.attn_logit_softcapping is not None:
            raise ExportError(
                f"The model sets attn_logit_softcapping to {half.attn_logit_softcapping}, which transformers' T5Gemma "
                "2 leaves out of its attention; nothing says what the model computes."
            )
    end, tied = config.eoi_token_index, config.tie_word_embeddings
    attention = [encoder_attention(reader, weights, i) for i in range(reader.num_hidden_layers)]
    layers = [f"{WRITER}.layers.{i}" for i in range(writer.num_hidden_layers)]
    heads = heads_of(writer)
    encoder = Encoder(
        TextStart(TextEmbedding(reader, weights, READER, end)),
        [encoder_layer(reader, weights, i, each) for i, each in enumerate(attention)],
        CrossKeysValues(
            weights,
            [f"{layer}.self_attn" for layer in layers],
            heads.key_value,
            names=QKVO,
            bias=writer.attention_bias,
            key_norms=[head_norm(writer, weights, f"{layer}.self_attn.k_norm", heads.key_value) for layer in layers],
        ),
        norm=residual_norm(reader, weights, f"{READER}.norm"),
        bias=TextStep(attention, tables(reader, weights, max_context, ENCODER)),
    )
    decoder = Decoder(
        weights,
        TextStart(TextEmbedding(writer, weights, READER if tied else WRITER, end)),
        [decoder_layer(writer, weights, i, layer) for i, layer in enumerate(layers)],
        f"{READER}.embed_tokens" if tied else "lm_head.out_proj",
        norm=residual_norm(writer, weights, f"{WRITER}.norm"),
        softcap=writer.final_logit_softcapping,
        rope=tables(writer, weights, max_context, "decoder"),
    )
    return EncoderDecoder(
        encoder,
        decoder,
        *sizes(reader, writer, max_context),
        bias=decoder_window(writer),
    )


def tables(config: Half, weights: Weights, positions: int, half: str) -> dict[str, RotaryTable]:
    """The rotary table of each type of layers, by its name."""
    return {
        kind: RotaryTable(weights, f"{half}.{kind}.rope", *cos_sin(config, config.rope_parameters[kind], positions))
        for kind in dict.fromkeys(config.layer_types)
    }


def head_norm(config: Half, weights: Weights, name: str, heads: int) -> HeadNorm:
    return HeadNorm(weights, name, heads, config.head_dim, config.rms_norm_eps, NORM_OFFSET)


class TextEmbedding(Embedding):
    """The scaled rows of the token embedding, and a vector of its own for the token that ends an image."""

    def __init__(self, config: Half, weights: Weights, half: str, end: int):
        name = f"{half}.embed_tokens"
        super().__init__(weights, name, scale=config.hidden_size**0.5)
        self.end = end
        self.of_end = weights.vector([f"{name}.eoi_embedding"], f"{name}.eoi_embedding", "embedding")

    def forward(self, op: Lowering, input_ids: Value) -> Value:
        ends = op.Unsqueeze(op.Equal(input_ids, op.Constant(value_int=self.end)), [2])
        return op.Where(ends, self.of_end, super().forward(op, input_ids))


def encoder_attention(config: Half, weights: Weights, i: int) -> BothWays:
    """An encoder layer's attention, both ways; a window of W tokens begins (W - 1) // 2 tokens before each."""
    width = window_of(config, i)
    return BothWays(
        weights,
        f"{READER}.layers.{i}.self_attn",
        i,
        heads_of(config),
        bias=config.attention_bias,
        rope=config.layer_types[i],
        window=None if width is None else ((width + 1) // 2, width // 2 + 1),
        qk_norm=lambda name, heads: head_norm(config, weights, name, heads),
        scale=config.query_pre_attn_scalar**-0.5,
        group=f"{ENCODER}.attention",
    )


def encoder_layer(config: Half, weights: Weights, i: int, attention: BothWays) -> EncoderLayer:
    name = f"{READER}.layers.{i}"
    mlp = GatedMLP(weights, f"{name}.mlp", config.hidden_activation, group=f"{ENCODER}.feed_forward")
    return EncoderLayer(
        residual(config, weights, name, "self_attn", attention), residual(config, weights, name, "feedforward", mlp)
    )


def decoder_layer(config: Half, weights: Weights, i: int, name: str) -> DecoderLayer:
    mlp = GatedMLP(weights, f"{name}.mlp", config.hidden_activation)
    return DecoderLayer(
        residual(config, weights, name, "self_attn", MergedAttention(config, weights, f"{name}.self_attn", i)),
        residual(config, weights, name, "feedforward", mlp),
    )


class MergedAttention(Attention):
    """Attention to the decoder's text and the encoder's by one softmax over the keys of both.

    It is computed as two of them, each of which also gives the logarithm of the sum that it divides by: the share of
    the decoder's text is the sigmoid of the difference.
    """

    def __init__(self, config: Half, weights: Weights, name: str, i: int):
        heads = heads_of(config)
        super().__init__(
            weights,
            name,
            i,
            heads,
            bias=config.attention_bias,
            rope=config.layer_types[i],
            qk_norm=lambda norm, count: head_norm(config, weights, norm, count),
            scale=config.query_pre_attn_scalar**-0.5,
        )
        self.reader = GroupedReader(i, heads, self.scale)

    def forward(self, op: Lowering, x: Value, step: Step, rows: Value | None = None) -> Value:
        assert self.rope is not None
        parts = self._query_key_value(op, self.qkv_proj(op, x), step, step.rope[self.rope], normed=False)
        of_text, key, value, sums = op.attention_and_sums(parts, step, self.layer, heads=self.heads, scale=self.scale)
        step.present[self.layer] = (key, value)
        of_input, more = self.reader.with_sums(op, parts[0], step)
        share = op.Sigmoid(op.Sub(sums, more))  # [1, S, H]
        apart = [1, -1, self.heads.query, self.heads.dim]
        of_text, of_input = op.Reshape(of_text, apart), op.Reshape(of_input, apart)
        y = op.Add(of_input, op.Mul(op.Unsqueeze(share, [3]), op.Sub(of_text, of_input)))
        return self.o_proj(op, take(op, op.Reshape(y, [1, -1, self.heads.query * self.heads.dim]), rows))


NEVER = r"(?!)"  # keys and values of the encoder's output are made with the matrices of the decoder's own
FAMILY = Family(encoder_decoder, cross=NEVER)
