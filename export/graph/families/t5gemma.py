"""T5Gemma: two Gemmas, of which the first reads both ways: rotary positions, grouped heads, soft caps, many norms."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from onnxscript import nn
from transformers import T5GemmaConfig, T5GemmaModuleConfig
from transformers.models.t5gemma.modeling_t5gemma import T5GemmaRotaryEmbedding

from edge.export.graph.blocks import (
    Attention,
    GatedMLP,
    ResidualNorm,
    RMSNorm,
    Step,
    Stream,
    capped,
    heads_of,
    take,
    window_of,
)
from edge.export.graph.cross import (
    ENCODER,
    CrossAttention,
    CrossDecoder,
    CrossKeysValues,
    Encoder,
    EncoderDecoder,
    Names,
    TextStart,
    arange,
)
from edge.export.graph.families.base import Family
from edge.export.graph.linear import Embedding, Projections, linear
from edge.export.graph.rope import RotaryTable, cos_sin
from edge.export.graph.weights import Weights
from edge.export.lower.base import Lowering, Value, scalar
from edge.manifest import Dims, EncoderDims
from edge.runtime.engine.engine import BLOCKED

NAME = "t5gemma"
PROJ = Names(out="o_proj")
NORM_OFFSET = 1.0  # the checkpoint's norm weights are stored less one


def encoder_decoder(config: T5GemmaConfig, weights: Weights, max_context: int) -> EncoderDecoder:
    reader, writer = config.encoder, config.decoder
    own = "model.decoder.embed_tokens"
    readers = [f"model.decoder.layers.{i}.cross_attn" for i in range(writer.num_hidden_layers)]
    encoder = Encoder(
        start(reader, weights, "model.encoder"),
        [EncoderLayer(reader, weights, i) for i in range(reader.num_hidden_layers)],
        CrossKeysValues(weights, readers, writer.num_key_value_heads, names=PROJ, biased=biased(writer)),
        norm=residual_norm(reader, weights, "model.encoder.norm"),
        bias=EncoderPlaces(reader, weights, max_context),
    )
    sliding = any(window_of(writer, i) for i in range(writer.num_hidden_layers))
    window = DecoderWindow(writer) if sliding else None
    decoder = CrossDecoder(
        weights,
        start(writer, weights, "model.decoder"),
        [DecoderLayer(writer, weights, i, window) for i in range(writer.num_hidden_layers)],
        f"{own}.weight" if config.tie_word_embeddings else "lm_head.out_proj.weight",
        norm=residual_norm(writer, weights, "model.decoder.norm"),
        softcap=writer.final_logit_softcapping,
        rope={"decoder": table(writer, weights, "decoder", max_context)},
    )
    heads = heads_of(writer)
    return EncoderDecoder(
        encoder,
        decoder,
        Dims(
            writer.num_hidden_layers,
            writer.hidden_size,
            writer.intermediate_size,
            heads.query,
            heads.key_value,
            heads.dim,
            writer.vocab_size,
        ),
        EncoderDims(reader.num_hidden_layers, reader.hidden_size, reader.num_attention_heads, max_context, "text"),
        bias=window,
    )


def start(config: T5GemmaModuleConfig, weights: Weights, half: str) -> TextStart:
    return TextStart(Embedding(weights, f"{half}.embed_tokens", scale=config.hidden_size**0.5))


def table(config: T5GemmaModuleConfig, weights: Weights, half: str, positions: int) -> RotaryTable:
    return RotaryTable(weights, f"{half}.rope", *cos_sin(T5GemmaRotaryEmbedding(config), positions))


def residual_norm(config: T5GemmaModuleConfig, weights: Weights, name: str) -> ResidualNorm:
    return ResidualNorm(weights, name, config.rms_norm_eps, offset=NORM_OFFSET)


def output_norm(config: T5GemmaModuleConfig, weights: Weights, name: str) -> RMSNorm:
    return RMSNorm(weights, name, config.rms_norm_eps, offset=NORM_OFFSET)


def biased(config: T5GemmaModuleConfig) -> tuple[str, ...]:
    return (PROJ.q, PROJ.k, PROJ.v, PROJ.out) if config.attention_bias else ()


@dataclass(frozen=True)
class Places:
    """What the encoder's layers know of places: the tokens' rotations, and which scores lie out of the window."""

    positions: Value  # [1, T]
    rotations: tuple[Value, Value]
    out_of_window: Value | None  # [T, T], added to the scores of sliding layers


class EncoderPlaces(nn.Module):
    """Makes them of the token ids."""

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
    """Attention both ways, with rotary positions; the query heads of a group stand side by side like rows.

    onnxruntime has operators for parts of this: with grouped heads or soft caps only for causal attention.
    """

    def __init__(self, config: T5GemmaModuleConfig, weights: Weights, name: str, *, sliding: bool):
        super().__init__()
        self.heads = heads_of(config)
        self.sliding = sliding
        self.scale = config.query_pre_attn_scalar**-0.5
        self.softcap = config.attn_logit_softcapping
        group, bias = f"{ENCODER}.attention", config.attention_bias
        self.qkv_proj = Projections(
            weights, [f"{name}.{p}" for p in (PROJ.q, PROJ.k, PROJ.v)], f"{name}.qkv_proj", group, bias=bias
        )
        self.o_proj = linear(weights, f"{name}.{PROJ.out}", group, bias=bias)

    def forward(self, op: Lowering, x: Value, places: Places) -> Value:
        own, groups, dim = self.heads.key_value, self.heads.query // self.heads.key_value, self.heads.dim
        parts = self.qkv_proj(op, x)
        if len(parts) == 1:
            sizes = [self.heads.query * dim, own * dim, own * dim]
            parts = op.Split(parts[0], sizes, axis=-1, _outputs=3)
        query, key = (self._rotate(op, part, places) for part in parts[:2])
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

    def _rotate(self, op: Lowering, x: Value, places: Places) -> Value:
        return op.rotate(x, places.positions, places.rotations)


class EncoderLayer(nn.Module):
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x)))."""

    def __init__(self, config: T5GemmaModuleConfig, weights: Weights, i: int):
        super().__init__()
        name, sliding = f"model.encoder.layers.{i}", config.layer_types[i] == "sliding_attention"
        self.pre_attention = residual_norm(config, weights, f"{name}.pre_self_attn_layernorm")
        self.attention = EncoderAttention(config, weights, f"{name}.self_attn", sliding=sliding)
        self.post_attention = output_norm(config, weights, f"{name}.post_self_attn_layernorm")
        self.pre_mlp = residual_norm(config, weights, f"{name}.pre_feedforward_layernorm")
        self.mlp = GatedMLP(weights, f"{name}.mlp", config.hidden_activation, group=f"{ENCODER}.feed_forward")
        self.post_mlp = output_norm(config, weights, f"{name}.post_feedforward_layernorm")

    def forward(self, op: Lowering, stream: Stream, places: Places) -> Stream:
        h, x = self.pre_attention(op, stream)
        h = self.post_attention(op, self.attention(op, h, places))
        h, x = self.pre_mlp(op, Stream(x, h))
        return Stream(x, self.post_mlp(op, self.mlp(op, h)))


class DecoderWindow(nn.Module):
    """What is added to the scores of sliding layers: the host's bias, and what blocks keys out of the window.

    Attention's own window counts rows of the cache, and the branches of a tree have rows of the same position.
    """

    def __init__(self, config: T5GemmaModuleConfig):
        super().__init__()
        self.window = config.sliding_window
        self.bias: Value | None = None  # [1, 1, S, T], of the graph that is being built

    def forward(self, op: Lowering, step: Step, keys: Value, given: Value) -> Value:
        distance = op.Sub(op.Transpose(step.position_ids, perm=[1, 0]), op.Unsqueeze(keys, [0]))  # [S, T]
        outside = op.GreaterOrEqual(distance, op.Constant(value_int=self.window))
        self.bias = op.Add(given, block(op, outside))
        return given


class GroupedCrossAttention(CrossAttention):
    """Cross-attention in its form for long inputs; the query heads of a group stand side by side like rows."""

    def __init__(self, config: T5GemmaModuleConfig, weights: Weights, name: str, i: int):
        heads = heads_of(config)
        scale = config.query_pre_attn_scalar**-0.5
        super().__init__(weights, name, i, heads.key_value, scale, names=PROJ, biased=biased(config))
        self.groups = heads.query // heads.key_value
        self.dim = heads.dim
        self.softcap = config.attn_logit_softcapping

    def forward(self, op: Lowering, x: Value, step: Step) -> Value:
        key, value = step.cross[self.layer]
        query = op.Reshape(self.q_proj(op, x), [1, -1, self.heads, self.groups, self.dim])
        query = op.Transpose(query, perm=[0, 2, 4, 3, 1])  # [1, H, D, G, S]
        query = op.Reshape(query, [1, self.heads, self.dim, -1])
        scores = op.matmul(key, query, scale=self.scale)  # [1, H, T, G S]
        if self.softcap is not None:
            scores = capped(op, scores, self.softcap)
        chances = op.Softmax(op.Transpose(scores, perm=[0, 1, 3, 2]), axis=-1)
        y = op.MatMul(value, op.Transpose(chances, perm=[0, 1, 3, 2]))  # [1, H, D, G S]
        y = op.Reshape(y, [1, self.heads, self.dim, self.groups, -1])
        y = op.Transpose(y, perm=[0, 4, 1, 3, 2])  # [1, S, H, G, D]
        return self.out_proj(op, op.Reshape(y, [1, -1, self.heads * self.groups * self.dim]))


class DecoderLayer(nn.Module):
    """x + norm(attention(norm(x))), the same with cross-attention, then x + norm(mlp(norm(x)))."""

    def __init__(self, config: T5GemmaModuleConfig, weights: Weights, i: int, window: DecoderWindow | None):
        super().__init__()
        name, scale = f"model.decoder.layers.{i}", config.query_pre_attn_scalar**-0.5
        self.window = None if window_of(config, i) is None else window
        self.pre_attention = residual_norm(config, weights, f"{name}.pre_self_attn_layernorm")
        self.attention = Attention(
            weights,
            f"{name}.self_attn",
            i,
            heads_of(config),
            rope="decoder",
            bias=config.attention_bias,
            output_bias=config.attention_bias,
            scale=scale,
            softcap=config.attn_logit_softcapping,
        )
        self.post_attention = output_norm(config, weights, f"{name}.post_self_attn_layernorm")
        self.pre_cross = residual_norm(config, weights, f"{name}.pre_cross_attn_layernorm")
        self.cross = GroupedCrossAttention(config, weights, f"{name}.cross_attn", i)
        self.post_cross = output_norm(config, weights, f"{name}.post_cross_attn_layernorm")
        self.pre_mlp = residual_norm(config, weights, f"{name}.pre_feedforward_layernorm")
        self.mlp = GatedMLP(weights, f"{name}.mlp", config.hidden_activation)
        self.post_mlp = output_norm(config, weights, f"{name}.post_feedforward_layernorm")

    def forward(self, op: Lowering, stream: Stream, step: Step, rows: Value | None = None) -> Stream:
        h, x = self.pre_attention(op, stream)
        own = step if self.window is None else dataclasses.replace(step, attention_bias=self.window.bias)
        h = self.post_attention(op, self.attention(op, h, own, rows))
        h, x = self.pre_cross(op, Stream(take(op, x, rows), h))
        stream = Stream(x, self.post_cross(op, self.cross(op, h, step)))
        step.cuts.append(stream)
        h, x = self.pre_mlp(op, stream)
        return Stream(x, self.post_mlp(op, self.mlp(op, h)))


def block(op: Lowering, where: Value) -> Value:
    """What is added to the scores: nothing, or so much that `where` is blocked."""
    return op.Where(where, scalar(op, "blocked", float(BLOCKED)), scalar(op, "open", 0.0))


FAMILY = Family(encoder_decoder, cross=r"\.cross_attn\.[kv]_proj\.")
