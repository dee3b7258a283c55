"""Nomic BERT: norms after its blocks, rotary positions, a gated feed-forward block, no biases but the norms'."""

from __future__ import annotations

from typing import Any

from edge.export.facts.family import Family, Heads
from edge.export.graph.bert_like import TOKEN_TYPES, dims_of
from edge.export.graph.blocks import GatedMLP, ResidualLayerNorm
from edge.export.graph.both_ways import BothWays, TextStep
from edge.export.graph.linear import Embedding
from edge.export.graph.rope import rotary_tables
from edge.export.graph.stacks import EncoderLayer, PostNorm
from edge.export.graph.vectors import EmbeddingModel, Embeddings, TextEncoder
from edge.export.graph.weights import Weights

NAME = "nomic_bert"
TRAITS = {"embeds": True}
# Which its makers state for people alone.
PROMPTS = {task: f"{task}: " for task in ("search_query", "search_document", "clustering", "classification")}


def build(config: Any, weights: Weights, max_context: int) -> EmbeddingModel:
    heads = config.num_attention_heads
    shape = Heads(heads, heads, config.head_dim)

    def norm(name: str) -> ResidualLayerNorm:
        return ResidualLayerNorm(weights, name, config.layer_norm_eps, many_rows=True)

    blocks = [
        BothWays(weights, f"layers.{i}.self_attn", i, shape, rope="rope") for i in range(config.num_hidden_layers)
    ]
    layers = [
        EncoderLayer(
            PostNorm(norm(f"layers.{i}.post_attention_layernorm"), block),
            PostNorm(norm(f"layers.{i}.post_mlp_layernorm"), GatedMLP(weights, f"layers.{i}.mlp", config.hidden_act)),
        )
        for i, block in enumerate(blocks)
    ]
    start = Embeddings(Embedding(weights, "embeddings.word_embeddings"), None, norm("embeddings.LayerNorm"))
    start.first = weights.table("first_type", weights.read(TOKEN_TYPES)[0])
    encoder = TextEncoder(start, layers, bias=TextStep(blocks, rotary_tables(weights, config, max_context)))
    return EmbeddingModel(encoder, dims_of(config))


FAMILY = Family(build, prompts=PROMPTS)
