"""Decoders like Llama: embedding, layers of attention and a gated feed-forward block, final norm, output head.

What families differ in is what `llama_like` takes, and where their norms stand (`families.base.Norms`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edge.export.graph.blocks import Attention, GatedMLP, HeadNorm, ResidualNorm, RMSNorm, heads_of, window_of
from edge.export.graph.families.base import PRE_NORM, Norms
from edge.export.graph.linear import Embedding
from edge.export.graph.rope import rotary_tables
from edge.export.graph.stacks import Decoder, DecoderLayer, Residual, TextStart
from edge.export.graph.weights import Weights


def llama_like(
    config: Any,
    weights: Weights,
    max_context: int,
    *,
    attention: Mapping[str, Any] | None = None,
    mlp: Mapping[str, Any] | None = None,
    rope: Callable[[int], str | None] = lambda layer: "rope",
    norms: Norms = PRE_NORM,
    activation: str | None = None,
    embedding_scale: float | None = None,
    residual_scale: float = 1.0,
    head_scale: float = 1.0,
    softcap: float | None = None,
) -> Decoder:
    """The decoder of a transformers configuration with Llama's names.

    attention, mlp: what every layer's `Attention` and `GatedMLP` take; no biases by
    default. rope: the table that a layer's positions are rotated by, if any: "rope", or the layer's type where types
    have their own. activation: by default the configuration's `hidden_act`. The scales multiply embeddings, what blocks
    add to the residual stream, and what the head reads. softcap: c * tanh(logit / c).
    """
    eps, offset, heads = config.rms_norm_eps, norms.offset, heads_of(config)

    def norm(kind: type[RMSNorm], layer: str, name: str | None) -> RMSNorm | None:
        return None if name is None else kind(weights, f"{layer}.{name}", eps, offset=offset)

    def layer(i: int) -> DecoderLayer:
        name = f"model.layers.{i}"
        own = {"rope": rope(i), "window": window_of(config, i), **(attention or {})}
        return DecoderLayer(
            Residual(
                norm(ResidualNorm, name, norms.attention),
                Attention(weights, f"{name}.self_attn", i, heads, **own),
                norm(RMSNorm, name, norms.outputs[0]),
                scale=residual_scale,
            ),
            Residual(
                norm(ResidualNorm, name, norms.gates),
                GatedMLP(weights, f"{name}.mlp", activation or config.hidden_act, **(mlp or {})),
                norm(RMSNorm, name, norms.outputs[1]),
                scale=residual_scale,
            ),
        )

    embedding = "model.embed_tokens"
    return Decoder(
        weights,
        TextStart(Embedding(weights, embedding, scale=embedding_scale)),
        [layer(i) for i in range(config.num_hidden_layers)],
        embedding if config.tie_word_embeddings else "lm_head",
        norm=ResidualNorm(weights, "model.norm", eps, offset=offset),
        scale=head_scale,
        softcap=softcap,
        rope=rotary_tables(weights, config, max_context),
    )


def head_norms(config: Any, weights: Weights, offset: float = 0.0) -> Callable[[str, int], HeadNorm]:
    """The norms of query and key heads, as `Attention` takes them."""
    dim, eps = heads_of(config).dim, config.rms_norm_eps
    return lambda name, heads: HeadNorm(weights, name, heads, dim, eps, offset)
