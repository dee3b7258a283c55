"""ModernBERT: norms before the blocks, rotary positions, most layers with a window, a gated feed-forward block."""

from __future__ import annotations

from typing import Any

from onnxscript import nn

from edge.export.facts.family import Family, HeadLayer, Heads, ScoreHead
from edge.export.graph.bert_like import dims_of
from edge.export.graph.blocks import GatedMLP, ResidualLayerNorm
from edge.export.graph.both_ways import BothWays, TextStep
from edge.export.graph.linear import Embedding
from edge.export.graph.rope import rotary_tables
from edge.export.graph.stacks import EncoderLayer, Residual
from edge.export.graph.vectors import EmbeddingModel, Embeddings, TextEncoder
from edge.export.graph.weights import Weights

NAME = "modernbert"
TRAITS = {"embeds": True}


def build(config: Any, weights: Weights, max_context: int) -> EmbeddingModel:
    heads = config.num_attention_heads
    shape = Heads(heads, heads, config.hidden_size // heads)

    def norm(name: str) -> ResidualLayerNorm:
        return ResidualLayerNorm(weights, name, config.norm_eps, many_rows=True, biased=config.norm_bias)

    def attention(i: int) -> BothWays:
        kind = config.layer_types[i]
        return BothWays(
            weights,
            f"layers.{i}.attn",
            i,
            shape,
            names=("Wqkv", "Wo"),
            bias=config.attention_bias,
            rope=kind,
            window=config.sliding_window + 1 if kind == "sliding_attention" else None,
        )

    def layer(i: int, block: nn.Module) -> EncoderLayer:
        name = f"layers.{i}"
        mlp = GatedMLP(
            weights, f"{name}.mlp", config.hidden_activation, projections=("Wi",), output="Wo", bias=config.mlp_bias
        )
        return EncoderLayer(
            Residual(norm(f"{name}.attn_norm") if i else None, block), Residual(norm(f"{name}.mlp_norm"), mlp)
        )

    blocks = [attention(i) for i in range(config.num_hidden_layers)]
    start = Embeddings(Embedding(weights, "embeddings.tok_embeddings"), None, norm("embeddings.norm"))
    encoder = TextEncoder(
        start,
        [layer(i, block) for i, block in enumerate(blocks)],
        norm=norm("final_norm"),
        bias=TextStep(blocks, rotary_tables(weights, config, max_context)),
    )
    return EmbeddingModel(encoder, dims_of(config))


def head(config: Any) -> ScoreHead:
    dense = HeadLayer("head.dense", config.classifier_activation, norm="head.norm", eps=config.norm_eps)
    return ScoreHead([dense, HeadLayer("classifier")], config.classifier_pooling)


FAMILY = Family(build, scores=head)
