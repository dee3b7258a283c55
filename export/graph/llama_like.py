"""Decoders like Llama: embedding, layers of attention and a gated feed-forward block, final norm, output head.

What families differ in is `facts.family.LlamaLike`, and where their norms stand `facts.family.Norms`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnxscript import nn

from edge.export.facts.family import BLOCKS, GGUF, PRE_NORM, Family, LlamaLike, Norms, heads_of, window_of
from edge.export.graph.blocks import MLP, Attention, GatedMLP, HeadNorm, ResidualLayerNorm, ResidualNorm, RMSNorm
from edge.export.graph.both_ways import BothWays
from edge.export.graph.experts import MixtureOfExperts, SharedExpert
from edge.export.graph.linear import Embedding
from edge.export.graph.recurrent import Beside, Recurrent, recurrent
from edge.export.graph.rope import rotary_tables
from edge.export.graph.stacks import Decoder, DecoderLayer, Positions, Residual, TextStart
from edge.export.graph.weights import Weights


def llama_like(layers: Callable[[Any], LlamaLike], *, norms: Norms = PRE_NORM, gguf: GGUF | None = None) -> Family:
    """The family whose models have the layers that `layers` makes of transformers' configuration."""

    def build(config: Any, weights: Weights, max_context: int) -> Decoder:
        return _decoder(config, layers(config), norms, weights, max_context)

    return Family(build, layers=layers, norms=norms, gguf=gguf)


def _decoder(config: Any, like: LlamaLike, norms: Norms, weights: Weights, max_context: int) -> Decoder:
    eps, offset, heads = getattr(config, norms.eps), norms.offset, heads_of(config)
    activation = like.activation or config.hidden_act

    def stream_norm(name: str) -> nn.Module:
        if norms.centred:
            return ResidualLayerNorm(weights, name, eps, biased=norms.bias)
        return ResidualNorm(weights, name, eps, offset=offset)

    def before(layer: str, name: str | None) -> nn.Module | None:
        return None if name is None else stream_norm(f"{layer}.{name}")

    def after(layer: str, name: str | None) -> RMSNorm | None:
        return None if name is None else RMSNorm(weights, f"{layer}.{name}", eps, offset=offset)

    def qk_norm(name: str, count: int) -> RMSNorm:
        if like.qk_norm == "head":
            return HeadNorm(weights, name, count, heads.dim, eps, offset)
        return RMSNorm(weights, name, eps, offset=offset)

    def window(i: int) -> int | None:
        found = window_of(config, i) if like.windowed else None
        return found // 2 + 1 if found is not None and like.both_ways else found  # half of it on each side

    def mixing(i: int, norm: RMSNorm | None) -> Attention | BothWays | Recurrent | Beside:
        if (sizes := like.mixer(i)) is None:
            return attention(i, norm)
        mixer = recurrent(weights, f"model.layers.{i}", i, sizes)
        return mixer if like.beside is None else Beside(attention(i, norm), mixer, like.beside)

    def attention(i: int, norm: RMSNorm | None) -> Attention | BothWays:
        common: dict[str, Any] = {
            "names": like.attention,
            "bias": like.bias,
            "rope": like.rope(i),
            "window": window(i),
            "qk_norm": None if like.qk_norm is None else qk_norm,
            "scale": like.scale,
            "softcap": like.attention_softcap,
        }
        name = f"model.layers.{i}.self_attn"
        if like.both_ways:
            return BothWays(weights, name, i, heads, **common)
        common["sinks"] = like.sinks
        common |= {"qk_names": like.qk_names, "qk_rotated": like.qk_rotated, "interleaved": like.interleaved}
        return Attention(weights, name, i, heads, output_norm=norm, output_gate=like.output_gate, **common)

    def feed_forward(i: int, norm: RMSNorm | None) -> nn.Module:
        name = f"model.layers.{i}"
        if (experts := like.experts(i)) is None:
            return dense(f"{name}.{like.mlp}", norm)
        block = f"{name}.{like.expert_block or like.mlp}"
        mixture = MixtureOfExperts(weights, block, experts, activation)
        if not like.is_dense(i):
            return mixture
        gate = None if like.shared_gate is None else f"{block}.{like.shared_gate}.weight"
        row = None if gate is None else weights.vector([gate], gate, "router")
        return SharedExpert(mixture, dense(f"{name}.{like.mlp}", norm), row)

    def dense(block: str, norm: RMSNorm | None) -> nn.Module:
        if not like.gated:
            biased = bool(like.mlp_bias)
            return MLP(weights, f"{block}.{like.gates[0]}", f"{block}.{like.down}", activation, bias=biased)
        return GatedMLP(
            weights,
            block,
            activation,
            projections=like.gates,
            output=like.down,
            bias=like.mlp_bias,
            norm=norm,
            gate_scale=like.mlp_scales[0],
        )

    def layer(i: int) -> DecoderLayer:
        name, (after_attention, after_mlp) = f"model.layers.{i}", norms.outputs
        within = [None, None] if like.output_norms is None else like.output_norms
        attention_norm, mlp_norm = (after(f"{name}.{block}", norm) for block, norm in zip(BLOCKS, within, strict=True))
        return DecoderLayer(
            Residual(
                before(name, norms.attention),
                mixing(i, attention_norm),
                after(name, after_attention),
                scale=like.residual_scale,
            ),
            Residual(
                before(name, norms.attention if like.parallel else norms.gates),
                feed_forward(i, mlp_norm),
                after(name, after_mlp),
                scale=like.residual_scale * like.mlp_scales[1],
            ),
            parallel=like.parallel,
        )

    embedding, numbers = "model.embed_tokens", range(config.num_hidden_layers)
    return Decoder(
        weights,
        TextStart(Embedding(weights, embedding, scale=like.embedding_scale)),
        [layer(i) for i in numbers],
        embedding if config.tie_word_embeddings else "lm_head",
        norm=stream_norm(f"model.{norms.final}"),
        scale=like.head_scale,
        softcap=like.softcap,
        rope=rotary_tables(weights, config, max_context) if any(map(like.rope, numbers)) else {},
        query_scales=_query_scales(weights, like, max_context),
    )


def _query_scales(weights: Weights, like: LlamaLike, max_context: int) -> Positions | None:
    if like.query_growth is None or max_context <= like.query_growth[1]:  # before that position queries do not grow
        return None
    return Positions(weights, "query.scales", query_scales(like.query_growth, max_context)[:, None])


def query_scales(growth: tuple[float, int], positions: int) -> NDArray[np.float32]:
    """What queries at the positions 0 to P - 1 are multiplied by, [P] float32, as Llama 4 does."""
    rate, length = growth
    return (1 + rate * np.log1p(np.arange(positions) // length)).astype(np.float32)
