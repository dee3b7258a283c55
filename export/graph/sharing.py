"""Attention of Gemma 3n and 4: the heads of queries, keys and values are normed, scores are not scaled, and the last
layers have no keys and values of their own: they read those of an earlier layer, and keep nothing in the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnxscript import nn

from edge.export.facts.family import QKVO, Heads, has_bias
from edge.export.graph.blocks import HeadNorm, Step, take
from edge.export.graph.linear import Projections, linear
from edge.export.graph.operators import Lowering, Value
from edge.export.graph.weights import Weights


def sources(kinds: Sequence[str], shared: int) -> list[int | None]:
    """The layer whose keys and values each layer reads, None where it has its own: each of the last `shared` layers
    reads those of the last layer of its kind before them."""
    first = len(kinds) - shared
    own = {kind: i for i, kind in enumerate(kinds[:first])}
    return [None if i < first else own[kind] for i, kind in enumerate(kinds)]


def unread(config: Any) -> list[str]:
    """What checkpoints have of layers that read other layers' keys and values."""
    first = config.num_hidden_layers - config.num_kv_shared_layers
    members = ("k_proj", "v_proj", "k_norm", "v_norm")
    layers = range(first, config.num_hidden_layers)
    return [f"model.layers.{i}.self_attn.{member}.weight" for i in layers for member in members]


def shapes(
    layer: str, config: Any, heads: Heads, projections: Mapping[str, int], wide: int
) -> dict[str, tuple[int, ...]]:
    """The tensors of a layer's attention and feed-forward block, by transformers' names.

    projections: of attention, but for the output's, with their heads. wide: channels of the feed-forward block.
    """
    hidden = config.hidden_size
    linears = {f"self_attn.{member}": (count * heads.dim, hidden) for member, count in projections.items()}
    linears["self_attn.o_proj"] = (hidden, heads.query * heads.dim)
    found: dict[str, tuple[int, ...]] = {}
    for member, size in linears.items():
        found[f"{layer}.{member}.weight"] = size
        if has_bias(config.attention_bias, member):
            found[f"{layer}.{member}.bias"] = size[:1]
    for norm in ("q_norm", "k_norm") if "k_proj" in projections else ("q_norm",):
        found[f"{layer}.self_attn.{norm}.weight"] = (heads.dim,)
    found |= {f"{layer}.mlp.{member}_proj.weight": (wide, hidden) for member in ("gate", "up")}
    return found | {f"{layer}.mlp.down_proj.weight": (hidden, wide)}


class PlainHeadNorm(HeadNorm):
    """A norm of each head by itself that has no weights."""

    def __init__(self, weights: Weights, name: str, heads: int, dim: int, eps: float):
        nn.Module.__init__(self)
        self.eps = eps
        self.heads, self.dim = heads, dim
        self.weight = weights.table(f"{name}.weight", np.ones(dim, np.float32))


class SharingAttention(nn.Module):
    """Causal self-attention over the layer's own cache, or over that of the layer `source`.

    values: whether they have a projection of their own; else they are the keys, before norm and rotation. rope, window:
    as of `Attention`.
    """

    def __init__(
        self,
        weights: Weights,
        name: str,
        layer: int,
        heads: Heads,
        eps: float,
        *,
        bias: bool,
        rope: str,
        window: int | None,
        source: int | None,
        values: bool = True,
    ):
        super().__init__()
        self.layer = layer
        self.heads = heads
        self.rope = rope
        self.window = window
        self.source = source
        self.values = values
        members = QKVO[:1] if source is not None else QKVO[: 2 + values]
        packed = "".join(member[0] for member in members) + "_proj"
        self.qkv_proj = Projections(weights, name, members, packed, "attention", bias=bias)
        self.o_proj = linear(weights, f"{name}.{QKVO[-1]}", "attention", bias=bias)
        self.q_norm = HeadNorm(weights, f"{name}.q_norm", heads.query, heads.dim, eps, 0.0)
        if source is None:
            self.k_norm = HeadNorm(weights, f"{name}.k_norm", heads.key_value, heads.dim, eps, 0.0)
            self.v_norm = PlainHeadNorm(weights, f"{name}.v_norm", heads.key_value, heads.dim, eps)

    def forward(self, op: Lowering, x: Value, step: Step, rows: Value | None = None) -> Value:
        """Compute [B, S, H] from [B, S, H]; [B, R, H] if `rows` are given."""
        rope, made = step.rope[self.rope], self.qkv_proj(op, x)
        if self.source is not None:
            query, there = self.q_norm(op, made[0]), step.present[self.source]
            y = op.shared_attention(query, there, step, heads=self.heads, scale=1.0, rope=rope, window=self.window)
            return self.o_proj(op, take(op, y, rows))
        parts = self._apart(op, made)
        query, key, value = (
            norm(op, part) for norm, part in zip((self.q_norm, self.k_norm, self.v_norm), parts, strict=True)
        )
        y, *written = op.attention(
            [query, key, value], step, self.layer, heads=self.heads, scale=1.0, rope=rope, window=self.window,
            softcap=None, norms=None,
        )  # fmt: skip
        step.present[self.layer] = (written[0], written[1])
        return self.o_proj(op, take(op, y, rows))

    def _apart(self, op: Lowering, made: list[Value]) -> list[Value]:
        """Queries, keys and values before their norms."""
        heads = self.heads
        if len(made) == 1:
            sizes = [heads.query, heads.key_value, *([heads.key_value] if self.values else [])]
            made = list(op.Split(made[0], [n * heads.dim for n in sizes], axis=-1, _outputs=len(sizes)))
        return made if self.values else [*made, made[1]]
