"""The layers of BERT's lineage: layer norms after the blocks, biases, a plain feed-forward block, learned positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onnxscript import nn

from edge.errors import ExportError
from edge.export.graph.blocks import MLP, ResidualLayerNorm
from edge.export.graph.cross import ENCODER, EncoderAttention
from edge.export.graph.linear import Embedding
from edge.export.graph.stacks import EncoderLayer, PostNorm
from edge.export.graph.vectors import EmbeddingModel, Embeddings, TextEncoder
from edge.export.graph.weights import Weights
from edge.manifest import Dims


@dataclass(frozen=True)
class Names:
    """Names of a layer's tensors: of the layers, and in one of them of attention's projections, the output's last, of
    the feed-forward block's two, and of the norms after both."""

    layer: str = "encoder.layer"
    attention: tuple[str, ...] = ("self.query", "self.key", "self.value", "output.dense")
    attention_norm: str = "attention.output.LayerNorm"
    feed_forward: tuple[str, str] = ("intermediate.dense", "output.dense")
    norm: str = "output.LayerNorm"


BERT = Names()
TOKEN_TYPES = "embeddings.token_type_embeddings.weight"


def bert_like(
    config: Any,
    weights: Weights,
    max_context: int,
    *,
    offset: int = 0,
    names: Names = BERT,
    bias: nn.Module | None = None,
) -> EmbeddingModel:
    """A model of such layers. offset: first rows of the positions' table that no token has. bias: see `TextEncoder`."""
    kind = getattr(config, "position_embedding_type", "absolute") or "absolute"
    if kind != "absolute":
        raise ExportError(f"The model's positions are of the kind {str(kind)[:60]!r}; absolute ones can be exported.")
    table = weights.read("embeddings.position_embeddings.weight")[offset : offset + max_context]
    if getattr(config, "type_vocab_size", 0):
        table = table + weights.read(TOKEN_TYPES)[0]
    start = Embeddings(
        Embedding(weights, "embeddings.word_embeddings"),
        weights.table("positions", table),
        _norm(config, weights, "embeddings.LayerNorm"),
    )
    layers = [_layer(config, weights, f"{names.layer}.{i}", names) for i in range(config.num_hidden_layers)]
    return EmbeddingModel(TextEncoder(start, layers, bias=bias), dims_of(config))


def _norm(config: Any, weights: Weights, name: str) -> ResidualLayerNorm:
    return ResidualLayerNorm(weights, name, config.layer_norm_eps, many_rows=True)


def _layer(config: Any, weights: Weights, name: str, names: Names) -> EncoderLayer:
    heads, (first, second) = config.num_attention_heads, names.feed_forward
    scale = (config.hidden_size // heads) ** -0.5
    attention = EncoderAttention(weights, f"{name}.attention", heads, scale, names=names.attention, bias=True)
    mlp = MLP(weights, f"{name}.{first}", f"{name}.{second}", config.hidden_act, group=f"{ENCODER}.feed_forward")
    return EncoderLayer(
        PostNorm(_norm(config, weights, f"{name}.{names.attention_norm}"), attention),
        PostNorm(_norm(config, weights, f"{name}.{names.norm}"), mlp),
    )


def dims_of(config: Any) -> Dims:
    """The sizes of a model without grouped heads."""
    heads = config.num_attention_heads
    return Dims(
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=config.hidden_size // heads,
        vocab_size=config.vocab_size,
    )
