"""Decoders like Llama: embedding, layers of attention and a gated feed-forward block, final norm, output head.

What families differ in is `facts.family.LlamaLike`, and where their norms stand `facts.family.Norms`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edge.export.facts.family import GGUF, PRE_NORM, Family, LlamaLike, Norms, heads_of, window_of
from edge.export.graph.blocks import Attention, GatedMLP, HeadNorm, ResidualNorm, RMSNorm
from edge.export.graph.both_ways import BothWays
from edge.export.graph.linear import Embedding
from edge.export.graph.rope import rotary_tables
from edge.export.graph.stacks import Decoder, DecoderLayer, Residual, TextStart
from edge.export.graph.weights import Weights


def llama_like(layers: Callable[[Any], LlamaLike], *, norms: Norms = PRE_NORM, gguf: GGUF | None = None) -> Family:
    """The family whose models have the layers that `layers` makes of transformers' configuration."""

    def build(config: Any, weights: Weights, max_context: int) -> Decoder:
        return _decoder(config, layers(config), norms, weights, max_context)

    return Family(build, layers=layers, norms=norms, gguf=gguf)


def _decoder(config: Any, like: LlamaLike, norms: Norms, weights: Weights, max_context: int) -> Decoder:
    eps, offset, heads = config.rms_norm_eps, norms.offset, heads_of(config)
    activation = like.activation or config.hidden_act

    def norm(kind: type[RMSNorm], layer: str, name: str | None) -> RMSNorm | None:
        return None if name is None else kind(weights, f"{layer}.{name}", eps, offset=offset)

    def qk_norm(name: str, count: int) -> RMSNorm:
        if like.qk_norm == "head":
            return HeadNorm(weights, name, count, heads.dim, eps, offset)
        return RMSNorm(weights, name, eps, offset=offset)

    def window(i: int) -> int | None:
        found = window_of(config, i) if like.windowed else None
        return found // 2 + 1 if found is not None and like.both_ways else found  # half of it on each side

    def attention(i: int) -> Attention | BothWays:
        kind = BothWays if like.both_ways else Attention
        return kind(
            weights,
            f"model.layers.{i}.self_attn",
            i,
            heads,
            names=like.attention,
            bias=like.bias,
            rope=like.rope(i),
            window=window(i),
            qk_norm=None if like.qk_norm is None else qk_norm,
            scale=like.scale,
            softcap=like.attention_softcap,
        )

    def layer(i: int) -> DecoderLayer:
        name, (after_attention, after_mlp) = f"model.layers.{i}", norms.outputs
        return DecoderLayer(
            Residual(
                norm(ResidualNorm, name, norms.attention),
                attention(i),
                norm(RMSNorm, name, after_attention),
                scale=like.residual_scale,
            ),
            Residual(
                norm(ResidualNorm, name, norms.gates),
                GatedMLP(weights, f"{name}.mlp", activation, projections=like.gates, bias=like.mlp_bias),
                norm(RMSNorm, name, after_mlp),
                scale=like.residual_scale,
            ),
        )

    embedding = "model.embed_tokens"
    return Decoder(
        weights,
        TextStart(Embedding(weights, embedding, scale=like.embedding_scale)),
        [layer(i) for i in range(config.num_hidden_layers)],
        embedding if config.tie_word_embeddings else "lm_head",
        norm=ResidualNorm(weights, "model.norm", eps, offset=offset),
        scale=like.head_scale,
        softcap=like.softcap,
        rope=rotary_tables(weights, config, max_context),
    )
