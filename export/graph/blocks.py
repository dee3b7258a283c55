"""The modules that every family is made of. Names of weights are those of transformers' checkpoints.

Values are floats of the target's type; B is the number of sequences, 1 wherever something else is not said, S the
number of new tokens of each, R of those the rows that need logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from onnxscript import nn

from edge.errors import ExportError
from edge.export.facts.family import QKVO, SINKS, Biased, Heads, has_bias
from edge.export.graph.linear import Projections, linear
from edge.export.graph.operators import HeadNorms, Lowering, Value, scalar
from edge.export.graph.weights import Weights


@dataclass
class Step:
    """State that all layers of one step share: the graph's inputs, and the caches that the layers return."""

    position_ids: Value  # [1, S] int64
    seqlens_k: Value  # [1] int32
    total_sequence_length: Value  # [] int32
    past: dict[int, tuple[Value, Value]]  # key and value of layers with a cache, each [1, Hkv, C, D]
    present: dict[int, tuple[Value, Value]] = field(default_factory=dict)
    states: dict[tuple[int, str], Value] = field(default_factory=dict)  # by layer and name, what it keeps instead
    written: dict[tuple[int, str], Value] = field(default_factory=dict)  # those after the step
    cross: list[tuple[Value, Value]] = field(default_factory=list)  # per layer, what the encoder made of its input
    attention_bias: Value | None = None  # [1, 1 or H, S, T], added to the scores of self-attention
    layer_biases: dict[int, Value] = field(default_factory=dict)  # of layers that have another one
    later: Value | None = None  # [S, T], true where a row of the caches comes after a token's own
    rope: dict[str, tuple[Value, Value]] = field(default_factory=dict)  # cos and sin tables by name
    per_layer: list[Value] = field(default_factory=list)  # what each layer reads besides the stream, [B, S, width]
    no_keys: dict[int, Value] = field(default_factory=dict)  # keys [B, 0, width] of no tokens, by their width
    query_scale: Value | None = None  # [1, S, 1], that queries are multiplied by where they grow with their positions
    cuts: list[Stream] = field(default_factory=list)  # after each layer's attention and feed-forward, in turns


def norm_weight(weights: Weights, name: str, offset: float) -> nn.Parameter:
    """The weights of the norm `name`, with `offset` added."""
    return weights.vector([f"{name}.weight"], f"{name}.weight", "norm", lambda w: w + np.float32(offset))


@dataclass(frozen=True)
class Stream:
    """The residual stream between two blocks: x, and what the block before adds to it, each [1, S, H].

    They stay apart until the next norm, because onnxruntime has one operator that adds and norms.
    """

    x: Value
    added: Value | None = None

    def sum(self, op: Lowering) -> Value:
        return self.x if self.added is None else op.Add(self.x, self.added)


class RMSNorm(nn.Module):
    """Root mean square norm over the last axis. `offset` is added to the checkpoint's weights (Gemma stores them
    minus one).
    """

    def __init__(self, weights: Weights, name: str, eps: float, *, offset: float = 0.0):
        super().__init__()
        self.eps = eps
        self.weight = norm_weight(weights, name, offset)

    def forward(self, op: Lowering, x: Value) -> Value:
        return op.rms_norm(x, self.weight, self.eps)


class ResidualNorm(RMSNorm):
    """The norm of the residual stream, which also adds up the stream: returns both."""

    def forward(self, op: Lowering, stream: Stream) -> tuple[Value, Value]:
        if stream.added is None:
            return op.rms_norm(stream.x, self.weight, self.eps), stream.x
        return op.add_rms_norm(stream.x, stream.added, self.weight, self.eps)


class HeadNorm(RMSNorm):
    """Root mean square norm of each head by itself, with one weight for all: [B, S, heads * dim] to the same."""

    def __init__(self, weights: Weights, name: str, heads: int, dim: int, eps: float, offset: float):
        super().__init__(weights, name, eps, offset=offset)
        self.heads = heads
        self.dim = dim

    def forward(self, op: Lowering, x: Value) -> Value:
        y = op.Reshape(x, [0, -1, self.heads, self.dim])  # 0: as many sequences as x has
        return op.Reshape(op.rms_norm(y, self.weight, self.eps), [0, -1, self.heads * self.dim])


class ResidualLayerNorm(nn.Module):
    """The layer norm of the residual stream: returns it, and the stream added up.

    many_rows: of an encoder's long input. biased: the checkpoint has a bias.
    """

    def __init__(self, weights: Weights, name: str, eps: float = 1e-5, *, many_rows: bool = False, biased: bool = True):
        super().__init__()
        self.eps = eps
        self.weight = norm_weight(weights, name, 0.0)
        bias = f"{name}.bias"
        lacking = {} if biased else {bias: len(weights.read(f"{name}.weight"))}
        self.bias = weights.vector([bias], bias, "norm", zeros=lacking)
        self.many_rows = many_rows

    def forward(self, op: Lowering, stream: Stream) -> tuple[Value, Value]:
        if stream.added is None:
            return op.layer_norm(stream.x, self.weight, self.bias, self.eps), stream.x
        return op.add_layer_norm(stream.x, stream.added, self.weight, self.bias, self.eps, many_rows=self.many_rows)


class Attention(nn.Module):
    """Causal self-attention over a cache that grows in place.

    names: its projections in the checkpoint, the output's last. bias: whether they have one, or which of them. rope:
    the decoder's rotary table by name; None: positions are not rotated. window: how many tokens, itself included, a
    token attends to. qk_norm: makes the norm of queries and of keys, of its name and the number of heads; qk_names:
    their names; qk_rotated: they come after the rotation. interleaved: the checkpoint has rotated pairs side by side.
    output_norm: of what the output's projection reads. output_gate: queries come with as many channels, next to them in
    each head, whose sigmoids multiply what is read. scale multiplies the scores, 1 / sqrt(head dim) where it is
    None; softcap bounds them. sinks: each head has a score that takes its share of the weights, and no value.
    """

    def __init__(
        self,
        weights: Weights,
        name: str,
        layer: int,
        heads: Heads,
        *,
        names: Sequence[str] = QKVO,
        bias: Biased = False,
        rope: str | None = None,
        window: int | None = None,
        qk_norm: Callable[[str, int], nn.Module] | None = None,
        qk_names: tuple[str, str] = ("q_norm", "k_norm"),
        qk_rotated: bool = False,
        interleaved: bool = False,
        output_norm: nn.Module | None = None,
        output_gate: bool = False,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: bool = False,
    ):
        super().__init__()
        self.layer = layer
        self.heads = heads
        self.rope = rope
        self.window = window
        *inputs, output = names
        if interleaved:
            for projection, count in zip(inputs, (heads.query, heads.key_value), strict=False):
                weights.turn_into_halves(f"{name}.{projection}", count)
        self.output_norm, self.output_gate = output_norm, output_gate
        self.qkv_proj = Projections(weights, name, inputs, "qkv_proj", "attention", bias=bias)
        self.o_proj = linear(weights, f"{name}.{output}", "attention", bias=has_bias(bias, output))
        self.scale = heads.dim**-0.5 if scale is None else scale
        self.softcap = softcap
        self.sinks = weights.vector([f"{name}.{SINKS}"], f"{name}.{SINKS}", "attention") if sinks else None
        self.q_norm: nn.Module | None = None
        self.k_norm: nn.Module | None = None
        if qk_norm is not None:
            self.q_norm, self.k_norm = (
                qk_norm(f"{name}.{norm}", count)
                for norm, count in zip(qk_names, (heads.query, heads.key_value), strict=True)
            )
        self.qk_rotated = qk_rotated

    def forward(self, op: Lowering, x: Value, step: Step, rows: Value | None = None) -> Value:
        """Compute [1, S, H] from [1, S, H]; [1, R, H] if `rows` are given."""
        rope = None if self.rope is None else step.rope[self.rope]
        before = rope if rope is not None and (self.qk_rotated or not op.rotates(rope)) else None
        norms = self._norms if op.norms_heads and before is None else None
        parts, gate = self.qkv_proj(op, x), None
        if self.output_gate:
            parts, gate = self._without_gate(op, parts)
        y, key, value = op.attention(
            self._query_key_value(op, parts, step, before, normed=norms is not None),
            step,
            self.layer,
            heads=self.heads,
            scale=self.scale,
            rope=rope if before is None else None,
            window=self.window,
            softcap=self.softcap,
            norms=norms,
            sinks=self.sinks,
        )
        step.present[self.layer] = (key, value)
        y = take(op, y, rows)
        if gate is not None:
            y = op.Mul(y, op.Sigmoid(take(op, gate, rows)))
        return self.o_proj(op, y if self.output_norm is None else self.output_norm(op, y))

    @property
    def _norms(self) -> HeadNorms | None:
        """The norms of queries and keys where they are of each head by itself."""
        query, key = self.q_norm, self.k_norm
        if not isinstance(query, HeadNorm) or not isinstance(key, HeadNorm):
            return None
        return HeadNorms(query.weight, key.weight, query.eps)

    def _without_gate(self, op: Lowering, parts: list[Value]) -> tuple[list[Value], Value]:
        """Query, key and value, and the gate [B, S, heads * dim], of projections that make queries with their gates."""
        query, dim = self.heads.query, self.heads.dim
        if len(parts) == 1:
            sizes = [2 * query * dim, self.heads.key_value * dim, self.heads.key_value * dim]
            parts = op.Split(parts[0], sizes, axis=-1, _outputs=3)
        both = op.Split(op.Reshape(parts[0], [0, -1, query, 2 * dim]), axis=-1, num_outputs=2, _outputs=2)
        of_query, gate = (op.Reshape(each, [0, -1, query * dim]) for each in both)
        return [of_query, *parts[1:]], gate

    def _query_key_value(
        self, op: Lowering, parts: list[Value], step: Step, rope: tuple[Value, Value] | None, *, normed: bool
    ) -> list[Value]:
        """Three values, or one packed value where nothing comes between it and attention.

        rope: the tables where queries and keys are rotated here. normed: attention norms them.
        """
        norms = None if normed or self.q_norm is None or self.k_norm is None else (self.q_norm, self.k_norm)
        if norms is None and rope is None and step.query_scale is None:
            return parts
        counts = self.heads.query, self.heads.key_value
        if len(parts) == 1:
            sizes = [n * self.heads.dim for n in (*counts, self.heads.key_value)]
            parts = op.Split(parts[0], sizes, axis=-1, _outputs=3)
        *made, value = parts

        def rotated() -> list[Value]:
            if rope is None:
                return made
            return [op.rotate(each, step.position_ids, rope, heads=n) for each, n in zip(made, counts, strict=True)]

        if self.qk_rotated:
            made = rotated()
        if norms is not None:
            made = [norm(op, each) for norm, each in zip(norms, made, strict=True)]
        if not self.qk_rotated:
            made = rotated()
        query, key = made
        return [query if step.query_scale is None else op.Mul(query, step.query_scale), key, value]


class GatedMLP(nn.Module):
    """down(norm(activation(scale * gate(x)) * up(x))); `activation` by transformers' name. The norm may be missing."""

    def __init__(
        self,
        weights: Weights,
        name: str,
        activation: str,
        *,
        projections: Sequence[str] = ("gate_proj", "up_proj"),
        output: str = "down_proj",
        group: str = "feed_forward",
        bias: Biased = False,
        norm: nn.Module | None = None,
        gate_scale: float = 1.0,
    ):
        super().__init__()
        self.activation = activation_of(activation)
        self.gate_scale = gate_scale
        self.gate_up_proj = Projections(weights, name, projections, "gate_up_proj", group, bias=bias)
        self.norm = norm
        self.down_proj = linear(weights, f"{name}.{output}", group, bias=has_bias(bias, output))

    def forward(self, op: Lowering, x: Value) -> Value:
        parts = self.gate_up_proj(op, x)
        gate, up = parts if len(parts) == 2 else op.Split(parts[0], axis=-1, num_outputs=2, _outputs=2)
        y = op.Mul(self.activation(op, scaled(op, gate, self.gate_scale, "gate_scale")), up)
        return self.down_proj(op, y if self.norm is None else self.norm(op, y))


class MLP(nn.Module):
    """fc2(activation(fc1(x))); `activation` by transformers' name.

    parts: the rows are computed in this many equal parts. What lies between the products is the widest of an encoder's
    activations, and of a part of 30 s of audio it fits into a cache.
    """

    def __init__(
        self,
        weights: Weights,
        first: str,
        second: str,
        activation: str,
        *,
        group: str = "feed_forward",
        bias: bool = True,
        parts: int = 1,
    ):
        super().__init__()
        self.activation = activation_of(activation)
        self.parts = parts
        self.fc1 = linear(weights, first, group, bias=bias)
        self.fc2 = linear(weights, second, group, bias=bias)

    def forward(self, op: Lowering, x: Value) -> Value:
        if self.parts == 1 or not op.caches:
            return self._rows(op, x)
        made = []
        for i, part in enumerate(op.Split(x, axis=1, num_outputs=self.parts, _outputs=self.parts)):
            op.builder.push_module(f"parts.{i}")  # each has nodes and constants of its own
            made.append(self._rows(op, part))
            op.builder.pop_module()
        return op.Concat(*made, axis=1)

    def _rows(self, op: Lowering, x: Value) -> Value:
        return self.fc2(op, self.activation(op, self.fc1(op, x)))


Activation = Callable[[Lowering, Value], Value]
ACTIVATIONS: dict[str, Activation] = {
    "silu": lambda op, x: op.silu(x),
    "swish": lambda op, x: op.silu(x),
    "gelu": lambda op, x: op.gelu(x),
    "gelu_new": lambda op, x: op.gelu_tanh(x),
    "gelu_pytorch_tanh": lambda op, x: op.gelu_tanh(x),
    "relu": lambda op, x: op.Relu(x),
    "relu2": lambda op, x: _squared(op, op.Relu(x)),
}


def _squared(op: Lowering, x: Value) -> Value:
    return op.Mul(x, x)


def activation_of(name: str) -> Activation:
    """The activation that transformers calls `name`."""
    if name not in ACTIVATIONS:
        raise ExportError(f"The activation {name!r} is not known; known are: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def take(op: Lowering, x: Value, rows: Value | None) -> Value:
    """The rows [R] of x [1, S, H], or all of them."""
    return x if rows is None else op.Gather(x, rows, axis=1)


def scaled(op: Lowering, x: Value, scale: float, name: str = "scale") -> Value:
    """Return x times the scale."""
    return x if scale == 1 else op.Mul(x, scalar(op, name, scale))


def capped(op: Lowering, x: Value, cap: float, name: str = "cap", dtype: ir.DataType | None = None) -> Value:
    """cap * tanh(x / cap). dtype: of x, by default the target's."""
    limit = scalar(op, name, cap, dtype)
    return op.Mul(op.Tanh(op.Div(x, limit)), limit)
