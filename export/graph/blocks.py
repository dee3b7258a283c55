"""The modules that every family is made of. Names of weights are those of transformers' checkpoints.

All values are float32; S is the number of new tokens, R of those the rows that need logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from edge.errors import ExportError
from edge.export.graph.linear import Embedding, Projections, Value, fused, linear, scalar
from edge.export.graph.rope import RotaryTable
from edge.export.graph.weights import Weights


@dataclass
class Step:
    """What all layers of one step share: the graph's inputs, and the caches they hand back."""

    position_ids: Value  # [1, S] int64
    seqlens_k: Value  # [1] int32
    total_sequence_length: Value  # [] int32
    past: list[tuple[Value, Value]]  # per layer key and value, each [1, Hkv, C, D]
    present: dict[int, tuple[Value, Value]] = field(default_factory=dict)
    cross: list[tuple[Value, Value]] = field(default_factory=list)  # per layer, what the encoder made of its input
    attention_bias: Value | None = None  # [1, 1 or H, S, T], added to the scores of self-attention
    rope: dict[str, tuple[Value, Value]] = field(default_factory=dict)  # cos and sin tables by name
    cuts: list[Stream] = field(default_factory=list)  # behind each layer's attention and feed-forward, in turns


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


class RMSNorm(nn.Module):
    """Root mean square norm over the last axis. `offset` is added to the checkpoint's weights (Gemma stores them
    less one).
    """

    def __init__(self, weights: Weights, name: str, eps: float, *, offset: float = 0.0):
        super().__init__()
        self.eps = eps
        self.weight = norm_weight(weights, name, offset)

    def forward(self, op: OpBuilder, x: Value) -> Value:
        return rms_norm(op, x, self.weight, self.eps)


def rms_norm(op: OpBuilder, x: Value, weight: nn.Parameter, eps: float) -> Value:
    """x by its root mean square over the last axis, times the weight."""
    return op.SimplifiedLayerNormalization(x, weight, axis=-1, epsilon=eps)


class ResidualNorm(nn.Module):
    """The norm of the residual stream, which also adds up the stream: returns both.

    Adding and norming in one operator makes a decode step 2 to 5% faster and is as fast for a prompt (2 threads, 576
    wide, onnxruntime 1.31): between two products, which stream weights through the caches, every operator runs cold.
    """

    def __init__(self, weights: Weights, name: str, eps: float, *, offset: float = 0.0):
        super().__init__()
        self.eps = eps
        self.weight = norm_weight(weights, name, offset)

    def forward(self, op: OpBuilder, stream: Stream) -> tuple[Value, Value]:
        if stream.added is None:
            return rms_norm(op, stream.x, self.weight, self.eps), stream.x
        unused = [ir.Value(name=""), ir.Value(name="")]  # mean and variance
        normed, _, _, x = fused(op).SkipSimplifiedLayerNormalization(
            stream.x, stream.added, self.weight, epsilon=self.eps, _outputs=["normed", *unused, "x"]
        )
        return normed, x


class HeadNorm(nn.Module):
    """Root mean square norm of each head by itself, with one weight for all: [1, S, heads * dim] to the same.

    GroupQueryAttention has inputs for these weights, but not on the CPU.
    """

    def __init__(self, weights: Weights, name: str, heads: int, dim: int, eps: float, offset: float):
        super().__init__()
        self.heads = heads
        self.dim = dim
        self.eps = eps
        self.weight = norm_weight(weights, name, offset)

    def forward(self, op: OpBuilder, x: Value) -> Value:
        y = op.Reshape(x, [1, -1, self.heads, self.dim])
        y = op.SimplifiedLayerNormalization(y, self.weight, axis=-1, epsilon=self.eps)
        return op.Reshape(y, [1, -1, self.heads * self.dim])


@dataclass(frozen=True)
class Heads:
    """The shape of an attention layer."""

    query: int
    key_value: int
    dim: int


def heads_of(config: Any) -> Heads:
    """The heads of a transformers configuration; their size is stated, or the hidden size's share."""
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Heads(config.num_attention_heads, config.num_key_value_heads, dim)


def window_of(config: Any, layer: int) -> int | None:
    """How many tokens the layer attends to, or None for all of them."""
    sliding = config.layer_types[layer] == "sliding_attention"
    return int(config.sliding_window) if sliding and config.sliding_window is not None else None


class Attention(nn.Module):
    """Causal self-attention over a cache that grows in place.

    rope names the decoder's rotary table, or is None where positions are not rotated. window: how many tokens,
    itself included, a token attends to. qk_norm: the epsilon of the norms of each query and key head. scale
    multiplies the scores, 1 / sqrt(head dim) where it is None.
    """

    def __init__(
        self,
        weights: Weights,
        name: str,
        layer: int,
        heads: Heads,
        *,
        rope: str | None,
        projections: Sequence[str] = ("q_proj", "k_proj", "v_proj"),
        output: str = "o_proj",
        bias: bool | Sequence[str] = False,
        output_bias: bool = False,
        window: int | None = None,
        qk_norm: float | None = None,
        norm_offset: float = 0.0,
        scale: float | None = None,
    ):
        super().__init__()
        if heads.dim % 8:
            raise ExportError(f"The model's heads are {heads.dim} wide; onnxruntime's attention takes multiples of 8.")
        self.layer = layer
        self.heads = heads
        self.rope = rope
        self.window = window
        names = [f"{name}.{p}" for p in projections]
        biased = bias if isinstance(bias, bool) else [f"{name}.{p}" for p in bias]
        self.qkv_proj = Projections(weights, names, f"{name}.qkv_proj", "attention", bias=biased)
        self.o_proj = linear(weights, f"{name}.{output}", "attention", bias=output_bias)
        self.attributes: dict[str, Any] = {
            "num_heads": heads.query,
            "kv_num_heads": heads.key_value,
            "do_rotary": int(rope is not None),
            "scale": heads.dim**-0.5 if scale is None else scale,
        }
        if window is not None:
            self.attributes["local_window_size"] = window
        self.q_norm = self.k_norm = None
        if qk_norm is not None:
            self.q_norm = HeadNorm(weights, f"{name}.q_norm", heads.query, heads.dim, qk_norm, norm_offset)
            self.k_norm = HeadNorm(weights, f"{name}.k_norm", heads.key_value, heads.dim, qk_norm, norm_offset)

    def forward(self, op: OpBuilder, x: Value, step: Step, rows: Value | None = None) -> Value:
        """[1, S, H] to [1, S, H], or [1, R, H] where `rows` are named."""
        query, key, value = self._query_key_value(op, x)
        cos, sin = (None, None) if self.rope is None else step.rope[self.rope]
        y, present_key, present_value = fused(op).GroupQueryAttention(
            query,
            key,
            value,
            *step.past[self.layer],
            step.seqlens_k,
            step.total_sequence_length,
            cos,
            sin,
            None if self.rope is None else step.position_ids,
            step.attention_bias,
            _outputs=3,
            **self.attributes,
        )
        step.present[self.layer] = (present_key, present_value)
        return self.o_proj(op, take(op, y, rows))

    def _query_key_value(self, op: OpBuilder, x: Value) -> list[Value | None]:
        """Three values, or one packed value: attention takes it apart itself where nothing comes between."""
        parts = self.qkv_proj(op, x)
        if self.q_norm is None or self.k_norm is None:
            return parts if len(parts) == 3 else [*parts, None, None]
        if len(parts) == 1:
            sizes = [n * self.heads.dim for n in (self.heads.query, self.heads.key_value, self.heads.key_value)]
            parts = op.Split(parts[0], sizes, axis=-1, _outputs=3)
        query, key, value = parts
        return [self.q_norm(op, query), self.k_norm(op, key), value]


class GatedMLP(nn.Module):
    """down(activation(gate(x)) * up(x)); `activation` by transformers' name."""

    def __init__(
        self,
        weights: Weights,
        name: str,
        activation: str,
        *,
        projections: Sequence[str] = ("gate_proj", "up_proj"),
        output: str = "down_proj",
        group: str = "feed_forward",
        bias: bool = False,
    ):
        super().__init__()
        self.activation = activation_of(activation)
        names = [f"{name}.{p}" for p in projections]
        self.gate_up_proj = Projections(weights, names, f"{name}.gate_up_proj", group, bias=bias)
        self.down_proj = linear(weights, f"{name}.{output}", group, bias=bias)

    def forward(self, op: OpBuilder, x: Value) -> Value:
        parts = self.gate_up_proj(op, x)
        gate, up = parts if len(parts) == 2 else op.Split(parts[0], axis=-1, num_outputs=2, _outputs=2)
        return self.down_proj(op, op.Mul(self.activation(op, gate), up))


def silu(op: OpBuilder, x: Value) -> Value:
    return fused(op).QuickGelu(x, alpha=1.0)


def gelu_tanh(op: OpBuilder, x: Value) -> Value:
    return fused(op).FastGelu(x)


def gelu(op: OpBuilder, x: Value) -> Value:
    return op.Gelu(x)


def relu(op: OpBuilder, x: Value) -> Value:
    return op.Relu(x)


Activation = Callable[[OpBuilder, Value], Value]
ACTIVATIONS: dict[str, Activation] = {
    "silu": silu,
    "swish": silu,
    "gelu": gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": relu,
}


def activation_of(name: str) -> Activation:
    """The activation that transformers calls `name`."""
    if name not in ACTIVATIONS:
        raise ExportError(f"The activation {name!r} is not known; known are: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def take(op: OpBuilder, x: Value, rows: Value | None) -> Value:
    """The rows [R] of x [1, S, H], or all of them."""
    return x if rows is None else op.Gather(x, rows, axis=1)


class Layer(nn.Module):
    """A pre-norm decoder layer: x + attention(norm(x)), then x + mlp(norm(x)).

    A layer takes the residual stream and returns it, and leaves it as it is between its halves in `step.cuts`; `rows`
    keeps only those rows after attention: the last layer needs no others.
    """

    def __init__(
        self,
        input_layernorm: ResidualNorm,
        self_attn: Attention,
        post_attention_layernorm: ResidualNorm,
        mlp: GatedMLP,
    ):
        super().__init__()
        self.input_layernorm = input_layernorm
        self.self_attn = self_attn
        self.post_attention_layernorm = post_attention_layernorm
        self.mlp = mlp

    def forward(self, op: OpBuilder, stream: Stream, step: Step, rows: Value | None = None) -> Stream:
        h, x = self.input_layernorm(op, stream)
        stream = Stream(take(op, x, rows), self.self_attn(op, h, step, rows))
        step.cuts.append(stream)
        h, x = self.post_attention_layernorm(op, stream)
        return Stream(x, self.mlp(op, h))


class Decoder(nn.Module):
    """Embedding, layers, final norm and output head; logits [1, R, V] of `logit_rows` alone.

    rope: the rotary tables by the names that the layers know them by. tied: the head reads the embedding's bytes.
    softcap: c * tanh(logit / c).
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
        softcap: float | None = None,
    ):
        super().__init__()
        self.embed_tokens = embed_tokens
        self.rope = rope
        for name, table in rope.items():
            setattr(self, f"{name}_rope", table)
        self.layers = nn.ModuleList(list(layers))
        self.norm = norm
        self.lm_head = linear(weights, "model.embed_tokens" if tied else "lm_head", "head")
        self.softcap = softcap

    def forward(self, op: OpBuilder, input_ids: Value, logit_rows: Value, step: Step) -> Value:
        step.rope = {name: table(op) for name, table in self.rope.items()}
        stream = Stream(self.embed_tokens(op, input_ids))
        *layers, last = self.layers
        for layer in layers:
            stream = layer(op, stream, step)
            step.cuts.append(stream)
        stream = last(op, stream, step, logit_rows)
        h, _ = self.norm(op, stream)
        logits = self.lm_head(op, h)
        if self.softcap is not None:
            cap = scalar(op, "softcap", self.softcap)
            logits = op.Mul(op.Tanh(op.Div(logits, cap)), cap)
        return logits
