"""Gemma 3n text: several residual streams (AltUp), a learned residual of low rank (LAuReL), few activations, per-layer
embeddings, and layers that share keys and values."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
from onnxscript import nn

from edge.errors import ExportError
from edge.export.facts.family import GGUF, Family, heads_of
from edge.export.facts.gguf_metadata import Metadata
from edge.export.graph import altup, per_layer, sharing
from edge.export.graph.altup import AltUp, Gathered, Spread
from edge.export.graph.blocks import Activation, GatedMLP, RMSNorm, Step, Stream, activation_of, scaled, take
from edge.export.graph.linear import Embedding, linear
from edge.export.graph.operators import Lowering, Value, scalar
from edge.export.graph.per_layer import PerLayerBlock, PerLayerInputs
from edge.export.graph.rope import rotary_tables
from edge.export.graph.sharing import SharingAttention, sources
from edge.export.graph.stacks import Decoder, TextStart
from edge.export.graph.weights import Weights

NAME = "gemma3n_text"
TRAITS = {"gguf": "gemma3n"}
FULL, SLIDING = "full_attention", "sliding_attention"
NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")


def decoder(config: Any, weights: Weights, max_context: int) -> Decoder:
    if unknown := sorted(set(config.layer_types) - {FULL, SLIDING}):
        raise ExportError(f"The model has layers of the type {unknown[0]!r}; Gemma 3n has {FULL} and {SLIDING}.")
    embedding = "model.embed_tokens"
    first, *others = (Layer(config, weights, i) for i in range(config.num_hidden_layers))
    return Decoder(
        weights,
        TextStart(Embedding(weights, embedding, scale=config.hidden_size**0.5)),
        [Spreading(Spread(weights, config), first), *others],
        embedding if config.tie_word_embeddings else "lm_head",
        norm=Gathered(weights, config),
        softcap=config.final_logit_softcapping,
        rope=rotary_tables(weights, config, max_context),
        per_layer=PerLayerInputs(weights, config),
    )


class Spreading(nn.Module):
    """The first layer, which reads token embeddings."""

    def __init__(self, spread: Spread, layer: Layer):
        super().__init__()
        self.spread = spread
        self.layer = layer

    def forward(self, op: Lowering, stream: Stream, step: Step, rows: Value | None = None) -> Stream:
        made: Stream = self.layer(op, Stream(self.spread(op, stream.x)), step, rows)
        return made


class Layer(nn.Module):
    """A layer over N streams [B, S, N, H], of which attention and feed-forward compute the active one."""

    def __init__(self, config: Any, weights: Weights, i: int):
        super().__init__()
        name, eps, kind = f"model.layers.{i}", config.rms_norm_eps, config.layer_types[i]
        self.altup = AltUp(weights, f"{name}.altup", config)
        self.laurel = Laurel(weights, f"{name}.laurel", eps)
        self.before, self.after_attention, self.gates, self.after_mlp = (
            RMSNorm(weights, f"{name}.{norm}", eps) for norm in NORMS
        )
        self.attention = SharingAttention(
            weights,
            f"{name}.self_attn",
            i,
            heads_of(config),
            eps,
            bias=config.attention_bias,
            rope=kind,
            window=config.sliding_window if kind == SLIDING else None,
            source=sources(config.layer_types, config.num_kv_shared_layers)[i],
        )
        self.mlp = GatedMLP(weights, f"{name}.mlp", config.hidden_activation)
        if sparsity := config.activation_sparsity_pattern[i]:
            self.mlp.activation = few(activation_of(config.hidden_activation), sparsity)
        self.scale: nn.Parameter | None = None
        if config.altup_correct_scale:
            scale = f"{name}.altup.correct_output_scale"
            self.scale = weights.vector([scale], scale, "norm")
        self.tokens = PerLayerBlock(weights, name, i, config.hidden_activation)
        self.after_tokens = RMSNorm(weights, f"{name}.{per_layer.OUTPUT_NORM}", eps)
        others = np.ones((config.altup_num_inputs, 1), np.float32)
        others[0] = 0  # the first stream gets nothing, whichever is active
        self.others = weights.table(f"{name}.altup.others", others)

    def forward(self, op: Lowering, stream: Stream, step: Step, rows: Value | None = None) -> Stream:
        predicted = self.altup.predict(op, stream.x)
        normed = self.before(op, self.altup.stream(op, predicted))
        attended = self.after_attention(op, self.attention(op, normed, step, rows))
        predicted, normed = take(op, predicted, rows), take(op, normed, rows)
        x = op.Add(op.Add(self.altup.stream(op, predicted), attended), self.laurel(op, normed))
        x = scaled(op, x, 2**-0.5, "halves")
        x = op.Add(x, self.after_mlp(op, self.mlp(op, self.gates(op, x))))
        corrected = self.altup.correct(op, predicted, x)
        first = self.altup.stream(op, corrected)
        if self.scale is not None:
            first = op.Mul(first, self.scale)
        added = self.after_tokens(op, self.tokens(op, first, step, rows))
        spread = op.Mul(op.Unsqueeze(added, [2]), self.others)
        return Stream(op.Add(corrected, spread))


class Laurel(nn.Module):
    """x + norm(right(left(x))), of low rank."""

    def __init__(self, weights: Weights, name: str, eps: float):
        super().__init__()
        self.left = linear(weights, f"{name}.linear_left", "feed_forward")
        self.right = linear(weights, f"{name}.linear_right", "feed_forward")
        self.norm = RMSNorm(weights, f"{name}.post_laurel_norm", eps)

    def forward(self, op: Lowering, x: Value) -> Value:
        return op.Add(x, self.norm(op, self.right(op, self.left(op, x))))


def few(activation: Activation, sparsity: float) -> Activation:
    """The activation of what a gate has above the quantile `sparsity` of a normal distribution with its mean and
    variance; of the rest it is that of 0."""
    factor = NormalDist().inv_cdf(sparsity)

    def of_gate(op: Lowering, gate: Value) -> Value:
        centred = op.Sub(gate, op.ReduceMean(gate, [-1], keepdims=1))
        deviation = op.Sqrt(altup.mean_square(op, centred))
        return activation(op, op.Relu(op.Sub(centred, op.Mul(deviation, scalar(op, "quantile", factor)))))

    return of_gate


def shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """The tensors of the model, by transformers' names."""
    hidden, heads = config.hidden_size, heads_of(config)
    rows = {"q_proj": heads.query, "k_proj": heads.key_value, "v_proj": heads.key_value}
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for i, source in enumerate(sources(config.layer_types, config.num_kv_shared_layers)):
        name, wide = f"model.layers.{i}", config.intermediate_size[i]
        members = rows if source is None else {"q_proj": heads.query}
        found |= sharing.shapes(name, config, heads, members, wide)
        found |= {f"{name}.{norm}.weight": (hidden,) for norm in NORMS} | altup.shapes(f"{name}.altup", config)
        found[f"{name}.laurel.linear_left.weight"] = (config.laurel_rank, hidden)
        found[f"{name}.laurel.linear_right.weight"] = (hidden, config.laurel_rank)
        found[f"{name}.laurel.post_laurel_norm.weight"] = (hidden,)
    for i in range(config.altup_num_inputs - 1):
        found |= {f"{name}.{i}.weight": (hidden, hidden) for name in (altup.PROJECTIONS, altup.UNEMBED)}
    found |= per_layer.shapes(config)
    found["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        found["lm_head.weight"] = (config.vocab_size, hidden)
    return found


def gguf(m: Metadata) -> dict[str, Any]:
    layers = m.size("block_count")
    kinds = [SLIDING if each else FULL for each in m.each("attention.sliding_window_pattern", bool, layers)]
    return {
        "head_dim": m.head_dim,
        "num_key_value_heads": m.size("attention.head_count_kv"),
        "intermediate_size": m.sizes("feed_forward_length", layers),
        "hidden_activation": "gelu_pytorch_tanh",
        "final_logit_softcapping": m.number("final_logit_softcapping", 30.0),
        "activation_sparsity_pattern": m.quantiles("activation_sparsity_scale", layers),
        "altup_num_inputs": m.size("altup.num_inputs"),
        "altup_active_idx": m.size("altup.active_idx", least=0),
        "altup_correct_scale": m.has("blk.0.altup_correct_scale.weight"),
        "laurel_rank": m.rows("blk.0.laurel_l.weight"),
        "num_kv_shared_layers": m.size("attention.shared_kv_layers", 0, least=0),
        "hidden_size_per_layer_input": m.size("embedding_length_per_layer_input"),
        "vocab_size_per_layer_input": m.rows("per_layer_token_embd.weight"),
        "sliding_window": m.size("attention.sliding_window"),
        "layer_types": kinds,
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": m.number("rope.freq_base", 1_000_000.0)},
            SLIDING: {"rope_type": "default", "rope_theta": m.number("rope.freq_base_swa", 10_000.0)},
        },
    }


FAMILY = Family(
    decoder,
    shapes=shapes,
    gguf=GGUF(
        gguf,
        names={
            "ffn_norm": "pre_feedforward_layernorm",
            "inp_gate": per_layer.GATE,
            "proj": per_layer.OUTPUT,
            "post_norm": per_layer.OUTPUT_NORM,
            "altup_correct_coef": "altup.correction_coefs",
            "altup_predict_coef": "altup.prediction_coefs",
            "altup_router": "altup.modality_router",
            "altup_router_norm": "altup.router_norm",
            "laurel_l": "laurel.linear_left",
            "laurel_r": "laurel.linear_right",
            "laurel_post_norm": "laurel.post_laurel_norm",
        },
        bare={"altup_correct_scale": "altup.correct_output_scale"},
        stacked={"altup_proj": altup.PROJECTIONS, "altup_unembd_proj": altup.UNEMBED},
        unread=sharing.unread,
    ),
)
