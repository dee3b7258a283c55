"""Decoders like Llama: embedding, layers of attention and a gated feed-forward block, final norm, output head.

What families differ in is what `llama_like` takes, and where their norms stand (`families.base.Norms`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from onnxscript import nn

from edge.export.graph.blocks import Attention, GatedMLP, ResidualNorm, RMSNorm, Step, Stream, capped, scaled, take
from edge.export.graph.families.base import PRE_NORM, Norms
from edge.export.graph.linear import Embedding, linear
from edge.export.graph.rope import RotaryTable, rotary_tables
from edge.export.graph.weights import Weights
from edge.export.lower.base import Lowering, Value

MakeAttention = Callable[[str, int], Attention]  # of its name in the checkpoint and the layer's number
MakeMLP = Callable[[str], GatedMLP]


class Layer(nn.Module):
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x))), with those norms that the family has.

    It takes the residual stream and returns it, and leaves it as it is between its halves in `step.cuts`; `rows` keeps
    only those rows after attention: the last layer needs no others. multiplier: of what either half adds.
    """

    def __init__(
        self,
        weights: Weights,
        i: int,
        norms: Norms,
        eps: float,
        attention: MakeAttention,
        mlp: MakeMLP,
        multiplier: float = 1.0,
    ):
        super().__init__()
        name = f"model.layers.{i}"
        self.norms = norms
        self.multiplier = multiplier

        def add(kind: Callable[..., nn.Module], norm: str | None) -> None:
            if norm is not None:
                setattr(self, norm, kind(weights, f"{name}.{norm}", eps, offset=norms.offset))

        add(ResidualNorm, norms.attention)
        self.self_attn = attention(f"{name}.self_attn", i)
        add(RMSNorm, norms.outputs[0])
        add(ResidualNorm, norms.gates)
        self.mlp = mlp(f"{name}.mlp")
        add(RMSNorm, norms.outputs[1])

    def forward(self, op: Lowering, stream: Stream, step: Step, rows: Value | None = None) -> Stream:
        h, x = self._read(op, self.norms.attention, stream)
        made = self._added(op, "attention", self.norms.outputs[0], self.self_attn(op, h, step, rows))
        stream = Stream(take(op, x, rows), made)
        step.cuts.append(stream)
        h, x = self._read(op, self.norms.gates, stream)
        return Stream(x, self._added(op, "mlp", self.norms.outputs[1], self.mlp(op, h)))

    def _read(self, op: Lowering, norm: str | None, stream: Stream) -> tuple[Value, Value]:
        """What a block reads, and the stream added up."""
        if norm is not None:
            return getattr(self, norm)(op, stream)
        x = stream.sum(op)
        return x, x

    def _added(self, op: Lowering, block: str, norm: str | None, made: Value) -> Value:
        """What is added to the stream of what a block made."""
        if norm is not None:
            made = getattr(self, norm)(op, made)
        return scaled(op, made, self.multiplier, f"{block}_scale")


class Decoder(nn.Module):
    """Embedding, layers, final norm and output head; logits [1, R, V] of `logit_rows` alone.

    rope: the rotary tables by the names that the layers know them by. tied: the head reads the embedding's bytes.
    head_scale: of what it reads. softcap: c * tanh(logit / c).
    """

    def __init__(
        self,
        weights: Weights,
        embed_tokens: Embedding,
        rope: dict[str, RotaryTable],
        layers: Iterable[nn.Module],
        norm: ResidualNorm,
        *,
        tied: bool,
        head_scale: float,
        softcap: float | None,
    ):
        super().__init__()
        self.embed_tokens = embed_tokens
        self.rope = rope
        for name, table in rope.items():
            setattr(self, f"{name}_rope", table)
        self.layers = nn.ModuleList(list(layers))
        self.norm = norm
        self.lm_head = linear(weights, "model.embed_tokens" if tied else "lm_head", "head")
        self.head_scale = head_scale
        self.softcap = softcap

    def forward(self, op: Lowering, input_ids: Value, logit_rows: Value, step: Step) -> Value:
        step.rope = {name: table(op) for name, table in self.rope.items()}
        stream = Stream(self.embed_tokens(op, input_ids))
        *layers, last = self.layers
        for layer in layers:
            stream = layer(op, stream, step)
            step.cuts.append(stream)
        stream = last(op, stream, step, logit_rows)
        h, _ = self.norm(op, stream)
        logits = self.lm_head(op, scaled(op, h, self.head_scale, "head_scale"))
        return logits if self.softcap is None else capped(op, logits, self.softcap, "softcap")


def llama_like(
    config: Any,
    weights: Weights,
    max_context: int,
    rotary: torch.nn.Module,
    attention: MakeAttention,
    *,
    mlp: MakeMLP | None = None,
    norms: Norms = PRE_NORM,
    embedding_scale: float | None = None,
    residual_scale: float = 1.0,
    head_scale: float = 1.0,
    softcap: float | None = None,
) -> Decoder:
    """The decoder of a transformers configuration with Llama's names.

    rotary: transformers' module; layers know its table as "rope", or by their type where types have their own.
    attention, mlp: make a layer's blocks; by default a feed-forward block without biases. The scales multiply
    embeddings, what blocks add to the residual stream, and what the head reads. softcap: c * tanh(logit / c).
    """
    block, eps = mlp or (lambda name: GatedMLP(weights, name, config.hidden_act)), config.rms_norm_eps
    return Decoder(
        weights,
        Embedding(weights, "model.embed_tokens", scale=embedding_scale),
        rotary_tables(weights, rotary, max_context),
        [Layer(weights, i, norms, eps, attention, block, residual_scale) for i in range(config.num_hidden_layers)],
        ResidualNorm(weights, "model.norm", eps, offset=norms.offset),
        tied=config.tie_word_embeddings,
        head_scale=head_scale,
        softcap=softcap,
    )
