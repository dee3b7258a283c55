"""T5Gemma: two Gemmas, of which the first reads both ways: rotary positions, grouped heads, soft caps, many norms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from onnxscript import nn
from transformers import T5GemmaConfig, T5GemmaModuleConfig

from edge.export.facts.family import QKVO, Family, heads_of, window_of
from edge.export.graph.blocks import Attention, GatedMLP, ResidualNorm, RMSNorm, Step, capped
from edge.export.graph.cross import ENCODER, CrossKeysValues, GroupedReader
from edge.export.graph.linear import Embedding, Projections, linear
from edge.export.graph.operators import Lowering, Value, scalar
from edge.export.graph.rope import RotaryTable, cos_sin
from edge.export.graph.stacks import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderDecoder,
    EncoderLayer,
    Residual,
    TextStart,
    arange,
)
from edge.export.graph.weights import Weights
from edge.manifest import Dims, EncoderDims
from edge.runtime.engine.tree import BLOCKED

if TYPE_CHECKING:
    from transformers import T5Gemma2DecoderConfig, T5Gemma2TextConfig

NAME = "t5gemma"
NORM_OFFSET = 1.0  # the checkpoint's norm weights are stored minus one
Half: TypeAlias = "T5GemmaModuleConfig | T5Gemma2TextConfig | T5Gemma2DecoderConfig"  # T5Gemma 2's, too


def encoder_decoder(config: T5GemmaConfig, weights: Weights, max_context: int) -> EncoderDecoder:
    reader, writer = config.encoder, config.decoder
    own = "model.decoder.embed_tokens"
    readers = [f"model.decoder.layers.{i}.cross_attn" for i in range(writer.num_hidden_layers)]
    encoder = Encoder(
        start(reader, weights, "model.encoder"),
        [encoder_layer(reader, weights, i) for i in range(reader.num_hidden_layers)],
        CrossKeysValues(weights, readers, writer.num_key_value_heads, names=QKVO, bias=writer.attention_bias),
        norm=residual_norm(reader, weights, "model.encoder.norm"),
        bias=EncoderPlaces(reader, weights, max_context),
    )
    decoder = Decoder(
        weights,
        start(writer, weights, "model.decoder"),
        [decoder_layer(writer, weights, i) for i in range(writer.num_hidden_layers)],
        own if config.tie_word_embeddings else "lm_head.out_proj",
        norm=residual_norm(writer, weights, "model.decoder.norm"),
        softcap=writer.final_logit_softcapping,
        rope={"decoder": table(writer, weights, "decoder", max_context)},
    )
    return EncoderDecoder(encoder, decoder, *sizes(reader, writer, max_context), bias=decoder_window(writer))


def sizes(reader: Half, writer: Half, max_context: int) -> tuple[Dims, EncoderDims]:
    """The sizes of both halves."""
    heads = heads_of(writer)
    return Dims(
        writer.num_hidden_layers,
        writer.hidden_size,
        writer.intermediate_size,
        heads.query,
        heads.key_value,
        heads.dim,
        writer.vocab_size,
    ), EncoderDims(reader.num_hidden_layers, reader.hidden_size, reader.num_attention_heads, max_context, "text")


def decoder_window(config: Half) -> DecoderWindow | None:
    """The bias of the decoder's sliding layers, where there are some."""
    sliding = [i for i in range(config.num_hidden_layers) if window_of(config, i)]
    return DecoderWindow(config.sliding_window, sliding) if sliding else None


def start(config: T5GemmaModuleConfig, weights: Weights, half: str) -> TextStart:
    return TextStart(Embedding(weights, f"{half}.embed_tokens", scale=config.hidden_size**0.5))


def table(config: T5GemmaModuleConfig, weights: Weights, half: str, positions: int) -> RotaryTable:
    return RotaryTable(weights, f"{half}.rope", *cos_sin(config, config.rope_parameters, positions))


def residual_norm(config: Half, weights: Weights, name: str) -> ResidualNorm:
    return ResidualNorm(weights, name, config.rms_norm_eps, offset=NORM_OFFSET)


def residual(config: Half, weights: Weights, layer: str, name: str, block: nn.Module) -> Residual:
    """Return a residual block between its norms."""
    after = RMSNorm(weights, f"{layer}.post_{name}_layernorm", config.rms_norm_eps, offset=NORM_OFFSET)
    return Residual(residual_norm(config, weights, f"{layer}.pre_{name}_layernorm"), block, after)


@dataclass(frozen=True)
class Places:
    """Position data of the encoder's layers: the tokens' rotations, and a bias that blocks scores outside the
    window."""

    positions: Value  # [1, T]
    rotations: tuple[Value, Value]
    out_of_window: Value | None  # [T, T], added to the scores of sliding layers


class EncoderPlaces(nn.Module):
    """Module that computes `Places` from the token ids."""

    def __init__(self, config: T5GemmaModuleConfig, weights: Weights, max_context: int):
        super().__init__()
        self.rope = table(config, weights, ENCODER, max_context)
        sliding = "sliding_attention" in config.layer_types
        self.window = config.sliding_window if sliding else None

    def forward(self, op: Lowering, ids: Value) -> Places:
        at = arange(op, ids)
        positions, rotations = op.Unsqueeze(at, [0]), self.rope(op)
        if self.window is None:
            return Places(positions, rotations, None)
        distance = op.Abs(op.Sub(positions, op.Unsqueeze(at, [1])))
        return Places(positions, rotations, block(op, op.Greater(distance, op.Constant(value_int=self.window))))


class EncoderAttention(nn.Module):
    """Attention both ways, with rotary positions; the query heads of a group are treated like rows.

    onnxruntime has operators for parts of this: with grouped heads or soft caps only for causal attention.
    """

    def __init__(self, config: T5GemmaModuleConfig, weights: Weights, name: str, *, sliding: bool):
        super().__init__()
        self.heads = heads_of(config)
        self.sliding = sliding
        self.scale = config.query_pre_attn_scalar**-0.5
        self.softcap = config.attn_logit_softcapping
        group, bias = f"{ENCODER}.attention", config.attention_bias
        self.qkv_proj = Projections(weights, name, QKVO[:3], "qkv_proj", group, bias=bias)
        self.o_proj = linear(weights, f"{name}.o_proj", group, bias=bias)

    def forward(self, op: Lowering, x: Value, places: Places) -> Value:
        own, groups, dim = self.heads.key_value, self.heads.query // self.heads.key_value, self.heads.dim
        parts = self.qkv_proj(op, x)
        if len(parts) == 1:
            sizes = [self.heads.query * dim, own * dim, own * dim]
            parts = op.Split(parts[0], sizes, axis=-1, _outputs=3)
        query, key = (
            op.rotate(part, places.positions, places.rotations, heads=count)
            for part, count in zip(parts[:2], (self.heads.query, own), strict=True)
        )
        query = op.Transpose(op.Reshape(query, [1, -1, own, groups, dim]), perm=[0, 2, 3, 1, 4])  # [1, H, G, T, D]
        key = op.Transpose(op.Reshape(key, [1, -1, own, 1, dim]), perm=[0, 2, 3, 4, 1])  # [1, H, 1, D, T]
        value = op.Transpose(op.Reshape(parts[2], [1, -1, own, 1, dim]), perm=[0, 2, 3, 1, 4])  # [1, H, 1, T, D]
        scores = op.matmul(query, key, scale=self.scale)  # [1, H, G, T, T]
        if self.softcap is not None:
            scores = capped(op, scores, self.softcap)
        if self.sliding and places.out_of_window is not None:
            scores = op.Add(scores, places.out_of_window)
        y = op.Transpose(op.MatMul(op.Softmax(scores, axis=-1), value), perm=[0, 3, 1, 2, 4])
        return self.o_proj(op, op.Reshape(y, [1, -1, self.heads.query * dim]))


def encoder_layer(config: T5GemmaModuleConfig, weights: Weights, i: int) -> EncoderLayer:
    name, sliding = f"model.encoder.layers.{i}", config.layer_types[i] == "sliding_attention"
    attention = EncoderAttention(config, weights, f"{name}.self_attn", sliding=sliding)
    mlp = GatedMLP(weights, f"{name}.mlp", config.hidden_activation, group=f"{ENCODER}.feed_forward")
    return EncoderLayer(
        residual(config, weights, name, "self_attn", attention), residual(config, weights, name, "feedforward", mlp)
    )


def decoder_layer(config: T5GemmaModuleConfig, weights: Weights, i: int) -> DecoderLayer:
    name = f"model.decoder.layers.{i}"
    attention = Attention(
        weights,
        f"{name}.self_attn",
        i,
        heads_of(config),
        bias=config.attention_bias,
        rope="decoder",
        scale=config.query_pre_attn_scalar**-0.5,
        softcap=config.attn_logit_softcapping,
    )
    mlp = GatedMLP(weights, f"{name}.mlp", config.hidden_activation)
    cross = GroupedCrossAttention(config, weights, f"{name}.cross_attn", i)
    return DecoderLayer(
        residual(config, weights, name, "self_attn", attention),
        residual(config, weights, name, "feedforward", mlp),
        residual(config, weights, name, "cross_attn", cross),
    )


class DecoderWindow(nn.Module):
    """Bias for the scores of sliding layers: the host's bias, and a term that blocks keys outside the window.

    Attention's window counts rows of the cache, and the branches of a tree have rows of the same position.
    """

    def __init__(self, window: int, layers: list[int]):
        super().__init__()
        self.window = window
        self.sliding = layers

    def forward(self, op: Lowering, step: Step, keys: Value, given: Value) -> Value:
        distance = op.Sub(op.Transpose(step.position_ids, perm=[1, 0]), op.Unsqueeze(keys, [0]))  # [S, T]
        outside = op.GreaterOrEqual(distance, op.Constant(value_int=self.window))
        step.layer_biases.update(dict.fromkeys(self.sliding, op.Add(given, block(op, outside))))
        return given


class GroupedCrossAttention(nn.Module):
    """Cross-attention whose keys and values several query heads share."""

    def __init__(self, config: T5GemmaModuleConfig, weights: Weights, name: str, i: int):
        super().__init__()
        bias, scale = config.attention_bias, config.query_pre_attn_scalar**-0.5
        self.q_proj = linear(weights, f"{name}.q_proj", "cross_attention", bias=bias)
        self.reader = GroupedReader(i, heads_of(config), scale, config.attn_logit_softcapping)
        self.o_proj = linear(weights, f"{name}.o_proj", "cross_attention", bias=bias)

    def forward(self, op: Lowering, x: Value, step: Step) -> Value:
        return self.o_proj(op, self.reader(op, self.q_proj(op, x), step))


def block(op: Lowering, where: Value) -> Value:
    """Return a bias for scores: 0, or a large negative number where `where` is true."""
    return op.Where(where, scalar(op, "blocked", float(BLOCKED)), scalar(op, "open", 0.0))


FAMILY = Family(encoder_decoder, cross=r"\.cross_attn\.[kv]_proj\.")
