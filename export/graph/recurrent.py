"""The layers of `edge.export.facts.mixers` as modules. They read and leave their states in the step.

B is the number of sequences, S the number of new tokens of each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnxscript import nn

from edge.errors import ExportError
from edge.export.facts.mixers import GatedDelta, Mixer, SelectiveScan, ShortConvolution
from edge.export.graph.blocks import Step, scaled, take
from edge.export.graph.linear import Projections, linear
from edge.export.graph.operators import NO_STATES, Lowering, Value
from edge.export.graph.weights import Weights
from edge.manifest import State

CONV, DELTA, SCAN = "conv", "delta", "scan"  # states
LENGTH_EPS = 1e-6  # that is added to the square of a query's and a key's length


class Recurrent(nn.Module):
    """A mixer of layer `layer`. `states`: what it keeps of a text."""

    def __init__(self, layer: int, sizes: Mixer):
        super().__init__()
        self.layer = layer
        self.states = [State(layer, name, list(shape)) for name, shape in sizes.states.items()]

    def convolved(self, op: Lowering, x: Value, step: Step, weight: Value, bias: Value | None, *, silu: bool) -> Value:
        """The convolution of x [B, S, C] over the last tokens."""
        y, after = op.causal_convolution(x, weight, bias, self.before(step, CONV), silu=silu)
        step.written[self.layer, CONV] = after
        return y

    def before(self, step: Step, name: str) -> Value:
        """A state before the step.

        Raises:
            ExportError: the graph's target knows no states.
        """
        if (found := step.states.get((self.layer, name))) is None:
            raise ExportError(NO_STATES)
        return found


class ShortConvolutionMixer(Recurrent):
    """See `ShortConvolution`."""

    def __init__(self, weights: Weights, name: str, layer: int, sizes: ShortConvolution):
        super().__init__(layer, sizes)
        self.in_proj = linear(weights, f"{name}.in_proj", "attention", bias=sizes.bias)
        self.out_proj = linear(weights, f"{name}.out_proj", "attention", bias=sizes.bias)
        self.taps = _taps(weights, f"{name}.conv")
        self.bias = weights.vector([f"{name}.conv.bias"], f"{name}.conv.bias", "attention") if sizes.bias else None

    def forward(self, op: Lowering, x: Value, step: Step, rows: Value | None = None) -> Value:
        """Compute [B, S, H] from [B, S, H]; [B, R, H] if `rows` are given."""
        before, after, x = op.Split(self.in_proj(op, x), axis=-1, num_outputs=3, _outputs=3)
        mixed = self.convolved(op, op.Mul(before, x), step, self.taps, self.bias, silu=False)
        return self.out_proj(op, take(op, op.Mul(after, mixed), rows))


class GatedDeltaMixer(Recurrent):
    """See `GatedDelta`."""

    def __init__(self, weights: Weights, name: str, layer: int, sizes: GatedDelta):
        super().__init__(layer, sizes)
        self.sizes = sizes
        self.in_proj = Projections(weights, name, ("in_proj_qkv", "in_proj_z"), "in_proj_qkvz", "attention")
        self.rates = Projections(weights, name, ("in_proj_b", "in_proj_a"), "in_proj_ba", "attention")
        self.out_proj = linear(weights, f"{name}.out_proj", "attention")
        self.taps = _taps(weights, f"{name}.conv1d")
        self.step_bias = weights.vector([f"{name}.dt_bias"], f"{name}.dt_bias", "attention")
        self.decay = weights.vector([f"{name}.A_log"], f"{name}.decay", "attention", lambda a: -np.exp(a))
        self.unit = weights.table(f"{name}.unit", np.full(sizes.key_dim, sizes.key_dim**-0.5, np.float32))
        self.norm = weights.vector([f"{name}.norm.weight"], f"{name}.norm.weight", "norm")

    def forward(self, op: Lowering, x: Value, step: Step, rows: Value | None = None) -> Value:
        """Compute [B, S, H] from [B, S, H]; [B, R, H] if `rows` are given."""
        sizes = self.sizes
        wide, inner = sizes.keys * sizes.key_dim, sizes.values * sizes.value_dim
        mixed, gate = _parts(op, self.in_proj(op, x), [sizes.channels, inner])
        rate, pace = _parts(op, self.rates(op, x), [sizes.values, sizes.values])
        mixed = self.convolved(op, mixed, step, self.taps, None, silu=True)
        query, key, value = op.Split(mixed, [wide, wide, inner], axis=-1, _outputs=3)
        decay = op.Mul(op.Softplus(op.Add(pace, self.step_bias)), self.decay)
        read, step.written[self.layer, DELTA] = op.delta_rule(
            self._directions(op, query),
            self._directions(op, key),
            value,
            self.before(step, DELTA),
            decay,
            op.Sigmoid(rate),
            heads=sizes.values,
        )
        shape = [0, -1, sizes.values, sizes.value_dim]
        normed = op.rms_norm(op.Reshape(take(op, read, rows), shape), self.norm, sizes.eps)
        gates = op.silu(op.Reshape(take(op, gate, rows), shape))
        return self.out_proj(op, op.Reshape(op.Mul(normed, gates), [0, -1, inner]))

    def _directions(self, op: Lowering, x: Value) -> Value:
        """Queries or keys of length 1 for each value head: [B, S, keys * dim] to [B, S, values * dim]."""
        sizes = self.sizes
        heads = op.Reshape(x, [0, -1, sizes.keys, sizes.key_dim])
        heads = op.rms_norm(heads, self.unit, LENGTH_EPS / sizes.key_dim)
        if (count := sizes.values // sizes.keys) > 1:
            repeated = op.Reshape(heads, [0, -1, sizes.keys, 1, sizes.key_dim])
            heads = op.Concat(*[repeated] * count, axis=3)
        return op.Reshape(heads, [0, -1, sizes.values * sizes.key_dim])


class SelectiveScanMixer(Recurrent):
    """See `SelectiveScan`."""

    def __init__(self, weights: Weights, name: str, layer: int, sizes: SelectiveScan):
        super().__init__(layer, sizes)
        self.sizes = sizes
        of_gate, *of_parts, of_pace = sizes.scales
        self.gate_scale, self.pace_scale = of_gate, of_pace
        self.in_proj = linear(weights, f"{name}.in_proj", "attention", bias=sizes.bias)
        self.out_proj = linear(weights, f"{name}.out_proj", "attention", bias=sizes.out_bias)
        channels = np.repeat(np.array(of_parts, np.float32), sizes.parts)[:, None, None]  # of what is convolved
        taps = f"{name}.conv1d"
        self.taps = weights.vector([f"{taps}.weight"], f"{taps}.weight", "attention", lambda w: w * channels)
        self.bias = weights.vector([f"{taps}.bias"], f"{taps}.bias", "attention") if sizes.conv_bias else None
        self.step_bias = weights.vector([f"{name}.dt_bias"], f"{name}.dt_bias", "attention")
        self.decay = weights.vector([f"{name}.A_log"], f"{name}.decay", "attention", lambda a: -np.exp(a))
        self.through = weights.vector([f"{name}.D"], f"{name}.D", "attention", lambda d: np.repeat(d, sizes.dim))
        norm = f"{name}.norm.weight"
        self.norm = weights.vector([norm], norm, "norm") if sizes.norm else None
        self.ones: nn.Parameter | None = None
        if sizes.norm and sizes.groups > 1:
            self.ones = weights.table(f"{name}.ones", np.ones(sizes.inner // sizes.groups, np.float32))

    def forward(self, op: Lowering, x: Value, step: Step, rows: Value | None = None) -> Value:
        """Compute [B, S, H] from [B, S, H]; [B, R, H] if `rows` are given."""
        sizes = self.sizes
        made = [sizes.inner, sum(sizes.parts), sizes.heads]
        gate, mixed, pace = op.Split(self.in_proj(op, x), made, axis=-1, _outputs=3)
        mixed = self.convolved(op, mixed, step, self.taps, self.bias, silu=True)
        value, key, query = op.Split(mixed, [*sizes.parts], axis=-1, _outputs=3)
        pace = op.Softplus(op.Add(scaled(op, pace, self.pace_scale, "pace_scale"), self.step_bias))
        by_head = op.Reshape(value, [0, -1, sizes.heads, sizes.dim])
        paced = op.Reshape(op.Mul(by_head, op.Unsqueeze(pace, [3])), [0, -1, sizes.inner])
        read, step.written[self.layer, SCAN] = op.gated_scan(
            query,
            key,
            paced,
            self.before(step, SCAN),
            op.Mul(pace, self.decay),
            groups=sizes.groups,
            heads=sizes.heads,
        )
        y = take(op, op.Add(read, op.Mul(value, self.through)), rows)
        gates = op.silu(scaled(op, take(op, gate, rows), self.gate_scale, "gate_scale"))
        if sizes.norm == "plain":
            return self.out_proj(op, op.Mul(self._normed(op, y), gates))
        return self.out_proj(op, self._normed(op, op.Mul(y, gates)))

    def _normed(self, op: Lowering, y: Value) -> Value:
        """y [B, R, inner], normed where the family does that, each group by itself."""
        if self.norm is None:
            return y
        if self.ones is None:
            return op.rms_norm(y, self.norm, self.sizes.eps)
        count, inner = self.sizes.groups, self.sizes.inner
        groups = op.rms_norm(op.Reshape(y, [0, -1, count, inner // count]), self.ones, self.sizes.eps)
        return op.Mul(op.Reshape(groups, [0, -1, inner]), self.norm)


class Beside(nn.Module):
    """Attention and a mixer that read the same: what both make, multiplied by `scales` and added."""

    def __init__(self, attention: nn.Module, mixer: Recurrent, scales: tuple[float, float]):
        super().__init__()
        self.attention, self.mixer, self.scales = attention, mixer, scales

    def forward(self, op: Lowering, x: Value, step: Step, rows: Value | None = None) -> Value:
        of_attention, of_mixer = self.scales
        attended = scaled(op, self.attention(op, x, step, rows), of_attention, "attention_scale")
        return op.Add(attended, scaled(op, self.mixer(op, x, step, rows), of_mixer, "mixer_scale"))


MODULES: dict[type, Callable[[Weights, str, int, Any], Recurrent]] = {
    ShortConvolution: ShortConvolutionMixer,
    GatedDelta: GatedDeltaMixer,
    SelectiveScan: SelectiveScanMixer,
}


def recurrent(weights: Weights, name: str, layer: int, sizes: Mixer) -> Recurrent:
    """The module of a mixer, whose block is in the checkpoint's layer `name`."""
    return MODULES[type(sizes)](weights, f"{name}.{sizes.name}", layer, sizes)


def _taps(weights: Weights, name: str) -> nn.Parameter:
    """The weights [C, 1, k] of a convolution."""
    return weights.vector([f"{name}.weight"], f"{name}.weight", "attention")


def _parts(op: Lowering, made: list[Value], sizes: list[int]) -> list[Value]:
    """The outputs of projections, which may be packed into one."""
    return made if len(made) == len(sizes) else list(op.Split(made[0], sizes, axis=-1, _outputs=len(sizes)))
