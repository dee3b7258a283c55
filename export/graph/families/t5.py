"""T5, v1.1, Flan-T5, mT5, ByT5, CodeT5, MADLAD: pre-norm, scores biased by relative position.

Feed-forward blocks have a gate, or none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from onnxscript import nn

from edge.export.facts.family import GGUF, Family, Heads, Languages
from edge.export.graph.blocks import MLP, Attention, GatedMLP, ResidualNorm, Step
from edge.export.graph.cross import ENCODER, CrossAttention, CrossKeysValues, EncoderAttention
from edge.export.graph.linear import Embedding
from edge.export.graph.operators import Lowering, Value
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
from edge.export.graph.step import ScoresBias
from edge.export.graph.t5_distances import buckets
from edge.export.graph.weights import Weights
from edge.manifest import Dims, EncoderDims

if TYPE_CHECKING:
    from edge.export.facts.gguf_metadata import Metadata

NAMES = ("t5", "mt5")
TRAITS = {"gguf": "t5"}
PROJ = ("q", "k", "v", "o")
CROSS = r"\.EncDecAttention\.[kv]\."  # makes keys and values of the encoder's output
SCALE = 1.0  # T5 folds the scale of its scores into its weights


def encoder_decoder(config: Any, weights: Weights, max_context: int) -> EncoderDecoder:
    return stacks(
        config,
        weights,
        max_context,
        SelfAttention,
        EncoderBias(weights, encoder_values(config, weights, 0)),
        DecoderBias(config, weights, max_context),
        scaled=getattr(config, "scale_decoder_outputs", False),
    )


def stacks(
    config: Any,
    weights: Weights,
    max_context: int,
    attention: Callable[[Any, Weights, int], nn.Module],
    encoder_bias: nn.Module,
    decoder_bias: ScoresBias,
    *,
    scaled: bool,
    long_input: bool = False,
) -> EncoderDecoder:
    """Return an encoder-decoder of T5's layers, with embeddings, final norms and the head.

    attention: builds an encoder layer's attention. scaled: the head's input is divided by the square root of its width.
    long_input: the encoder reads documents.
    """
    heads, eps = config.num_heads, config.layer_norm_epsilon
    readers = [f"decoder.block.{i}.layer.1.EncDecAttention" for i in range(config.num_decoder_layers)]
    encoder = Encoder(
        TextStart(Embedding(weights, "shared")),
        [encoder_layer(config, weights, i, attention) for i in range(config.num_layers)],
        CrossKeysValues(weights, readers, heads, names=PROJ, long_input=long_input),
        norm=ResidualNorm(weights, "encoder.final_layer_norm", eps),
        bias=encoder_bias,
    )
    decoder = Decoder(
        weights,
        TextStart(Embedding(weights, "shared")),
        [decoder_layer(config, weights, i, long_input=long_input) for i in range(config.num_decoder_layers)],
        "shared" if config.tie_word_embeddings else "lm_head",
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


class SelfAttention(EncoderAttention):
    """Self-attention of an encoder layer, by T5's names."""

    def __init__(self, config: Any, weights: Weights, i: int):
        super().__init__(weights, f"encoder.block.{i}.layer.0.SelfAttention", config.num_heads, SCALE, names=PROJ)


def residual(config: Any, weights: Weights, name: str, block: nn.Module) -> Residual:
    return Residual(ResidualNorm(weights, f"{name}.layer_norm", config.layer_norm_epsilon), block)


def encoder_layer(
    config: Any, weights: Weights, i: int, attention: Callable[[Any, Weights, int], nn.Module]
) -> EncoderLayer:
    name = f"encoder.block.{i}.layer"
    feed_forward = mlp(config, weights, f"{name}.1.DenseReluDense", f"{ENCODER}.feed_forward")
    return EncoderLayer(
        residual(config, weights, f"{name}.0", attention(config, weights, i)),
        residual(config, weights, f"{name}.1", feed_forward),
    )


def decoder_layer(config: Any, weights: Weights, i: int, *, long_input: bool) -> DecoderLayer:
    name, heads = f"decoder.block.{i}.layer", config.num_heads
    shape = Heads(heads, heads, config.d_kv)
    attention = Attention(weights, f"{name}.0.SelfAttention", i, shape, names=PROJ, scale=SCALE)
    cross = CrossAttention(weights, f"{name}.1.EncDecAttention", i, heads, SCALE, names=PROJ, long_input=long_input)
    return DecoderLayer(
        residual(config, weights, f"{name}.0", attention),
        residual(config, weights, f"{name}.2", mlp(config, weights, f"{name}.2.DenseReluDense", "feed_forward")),
        residual(config, weights, f"{name}.1", cross),
    )


def mlp(config: Any, weights: Weights, name: str, group: str) -> nn.Module:
    activation = config.dense_act_fn
    if config.is_gated_act:
        return GatedMLP(weights, name, activation, projections=("wi_0", "wi_1"), output="wo", group=group)
    return MLP(weights, f"{name}.wi", f"{name}.wo", activation, group=group, bias=False)


class EncoderBias(nn.Module):
    """The scores' bias [1, H, T, T] by how far the key is from the query. values [H, 2 reach + 1]: at the distances,
    key minus query, from -reach to reach; all beyond have those of the ends."""

    def __init__(self, weights: Weights, values: NDArray[np.float32]):
        super().__init__()
        self.reach = values.shape[1] // 2
        self.table = weights.table("encoder.relative_bias", values)

    def forward(self, op: Lowering, ids: Value) -> Value:
        return op.Unsqueeze(op.Gather(self.table, distance_index(op, ids, self.reach), axis=1), [0])


def encoder_values(config: Any, weights: Weights, layer: int) -> NDArray[np.float32]:
    """A layer's bias [H, 2 reach + 1] at the distances, key minus query, from -reach to reach."""
    reach = config.relative_attention_max_distance
    return bias_values(config, weights, "encoder", np.arange(-reach, reach + 1), layer, bidirectional=True)


def distance_index(op: Lowering, ids: Value, reach: int) -> Value:
    """The column [T, T] of `encoder_values` of each key for each query; all distances beyond `reach` share one."""
    at = arange(op, ids)
    return column(op, op.Sub(op.Unsqueeze(at, [0]), op.Unsqueeze(at, [1])), reach)


def column(op: Lowering, distance: Value, reach: int) -> Value:
    """The column of each distance, key minus query, in a table of those from -reach to reach."""
    low, high = op.Constant(value_int=-reach), op.Constant(value_int=reach)
    return op.Sub(op.Min(op.Max(distance, low), high), low)


class DecoderBias(nn.Module):
    """The bias [1, H, S, T] by how far the key is before the query, plus the host's.

    The table has an entry for every distance, so that a step needs no clipping. A key after the query has a negative
    one, which reads from the table's end; no token attends there.
    """

    def __init__(self, config: Any, weights: Weights, max_context: int):
        super().__init__()
        self.table = weights.table("decoder.relative_bias", decoder_values(config, weights, max_context, 0))

    def forward(self, op: Lowering, step: Step, keys: Value, given: Value) -> Value:
        distance = op.Sub(op.Reshape(step.position_ids, [-1, 1]), keys)  # [S, T]
        return op.Add(op.Gather(self.table, distance, axis=1), given)


def decoder_values(config: Any, weights: Weights, max_context: int, layer: int) -> NDArray[np.float32]:
    """A layer's bias [H, max_context] at the distances 0 to max_context - 1, query minus key."""
    return bias_values(config, weights, "decoder", -np.arange(max_context), layer, bidirectional=False)


def bias_values(
    config: Any,
    weights: Weights,
    stack: str,
    distances: NDArray[np.int64],
    layer: int,
    *,
    bidirectional: bool,
    name: str = "SelfAttention",
    table: str = "relative_attention_bias",
) -> NDArray[np.float32]:
    """The learned bias [H, distances] of each distance, key minus query, in a layer. name, table: of its attention and
    of the biases in the checkpoint."""
    learned = weights.read(f"{stack}.block.{layer}.layer.0.{name}.{table}.weight")
    return np.ascontiguousarray(learned[buckets(config, distances, bidirectional=bidirectional)].T)


def gguf_config(m: Metadata) -> dict[str, Any]:
    """Return the configuration of llama.cpp's graph of T5. The maximum distance and the activations are not in the
    file."""
    gated, tied = m.has("enc.blk.0.ffn_gate.weight"), not m.has("output.weight")
    layers, heads = m.size("block_count"), m.size("attention.head_count")
    return {
        "d_model": m.size("embedding_length"),
        "d_ff": m.size("feed_forward_length"),
        "d_kv": m.size("attention.key_length", m.size("embedding_length") // heads),
        "num_layers": layers,
        "num_decoder_layers": m.size("decoder_block_count", layers),
        "num_heads": heads,
        "relative_attention_num_buckets": m.size("attention.relative_buckets_count"),
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": m.epsilon("attention.layer_norm_rms_epsilon"),
        "is_gated_act": gated,
        "dense_act_fn": "gelu_new" if gated else "relu",
        "feed_forward_proj": "gated-gelu" if gated else "relu",
        "tie_word_embeddings": tied,
        "scale_decoder_outputs": tied,  # as T5 1.0 is, the only one that is tied
        "decoder_start_token_id": m.size("decoder_start_token_id", 0, least=0),
        "is_encoder_decoder": True,
    }


# MADLAD writes <2de> before its texts; no other vocabulary of the family has such tokens.
LANGUAGES = Languages(r"<2(\w+)>", in_source=True)
FAMILY = Family(encoder_decoder, cross=CROSS, gguf=GGUF(gguf_config), languages=LANGUAGES)
