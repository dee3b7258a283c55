"""AltUp (Baykal et al. 2023, arXiv:2301.13310), as Gemma 3n has it: the residual stream is N streams [B, S, N, H], of
which a layer computes one, and predicts and corrects the others."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnxscript import nn

from edge.export.graph.blocks import ResidualNorm, RMSNorm, Stream, scaled
from edge.export.graph.linear import linear
from edge.export.graph.operators import Lowering, Value, scalar
from edge.export.graph.weights import Weights

SMALLEST = 1e-5  # mean square that a projection is divided by the root of
PROJECTIONS, UNEMBED = "model.altup_projections", "model.altup_unembed_projections"


def mean_square(op: Lowering, x: Value) -> Value:
    return op.ReduceMean(op.Mul(x, x), [-1], keepdims=1)


class Projected(nn.Module):
    """Linear layers of the streams after the first, whose results become as large as the first stream is."""

    def __init__(self, weights: Weights, name: str, count: int):
        super().__init__()
        self.linears = nn.ModuleList([linear(weights, f"{name}.{i}", "altup") for i in range(count - 1)])

    def forward(self, op: Lowering, streams: list[Value]) -> list[Value]:
        """streams: the first one, then what the linear layers read, each [B, S, H]."""
        first, *others = streams
        size, made = op.Sqrt(mean_square(op, first)), [first]
        least = scalar(op, "smallest", SMALLEST)
        for module, x in zip(self.linears, others, strict=True):
            y = module(op, x)
            made.append(op.Div(op.Mul(y, size), op.Sqrt(op.Max(mean_square(op, y), least))))
        return made


class Spread(nn.Module):
    """Token embeddings [B, S, H] become N streams [B, S, N, H]."""

    def __init__(self, weights: Weights, config: Any):
        super().__init__()
        self.count = config.altup_num_inputs
        self.projected = Projected(weights, PROJECTIONS, self.count)

    def forward(self, op: Lowering, x: Value) -> Value:
        return op.Concat(*(op.Unsqueeze(each, [2]) for each in self.projected(op, [x] * self.count)), axis=2)


class Gathered(nn.Module):
    """N streams [B, S, N, H] become what the head reads [B, S, H]: their mean, normed."""

    def __init__(self, weights: Weights, config: Any):
        super().__init__()
        self.count = config.altup_num_inputs
        self.projected = Projected(weights, UNEMBED, self.count)
        self.norm = ResidualNorm(weights, "model.norm", config.rms_norm_eps)

    def forward(self, op: Lowering, stream: Stream) -> tuple[Value, Value]:
        parts = op.Split(stream.x, axis=2, num_outputs=self.count, _outputs=self.count)
        total, *others = self.projected(op, [op.Squeeze(part, [2]) for part in parts])
        for each in others:
            total = op.Add(total, each)
        normed: tuple[Value, Value] = self.norm(op, Stream(scaled(op, total, 1 / self.count, "mean")))
        return normed


class Coefficients(nn.Module):
    """Numbers for each token, made of one of its streams. They come from few weights, which stay floats."""

    def __init__(self, weights: Weights, name: str, member: str, config: Any):
        super().__init__()
        self.scale = 1 / config.hidden_size
        self.norm = RMSNorm(weights, f"{name}.router_norm", config.rms_norm_eps)
        self.router, self.made = (_turned(weights, f"{name}.{each}") for each in ("modality_router", member))

    def forward(self, op: Lowering, x: Value) -> Value:
        """Compute [B, S, numbers] from a stream [B, S, H]."""
        read = scaled(op, self.norm(op, x), self.scale)
        return op.MatMul(op.Tanh(op.MatMul(read, self.router)), self.made)


def _turned(weights: Weights, name: str) -> nn.Parameter:
    """A matrix, transposed."""
    return weights.table(name, np.ascontiguousarray(weights.read(f"{name}.weight").T))


class AltUp(nn.Module):
    """What a layer does with the streams: `predict` before it and `correct` after it. name: the layer's."""

    def __init__(self, weights: Weights, name: str, config: Any):
        super().__init__()
        self.count, self.active = config.altup_num_inputs, config.altup_active_idx
        self.before = Coefficients(weights, name, "prediction_coefs", config)
        self.after = Coefficients(weights, name, "correction_coefs", config)

    def stream(self, op: Lowering, x: Value) -> Value:
        """The active one [B, S, H] of streams [B, S, N, H]."""
        return op.Gather(x, op.Constant(value_int=self.active), axis=2)

    def predict(self, op: Lowering, x: Value) -> Value:
        """Streams [B, S, N, H] as they would be: each plus a part of all."""
        parts = self.before(op, self.stream(op, x))  # [B, S, N * N]
        return op.Add(x, op.MatMul(op.Reshape(parts, [0, 0, self.count, self.count]), x))

    def correct(self, op: Lowering, predicted: Value, made: Value) -> Value:
        """Predicted streams, each plus a part of what the layer made [B, S, H] differs from the prediction by."""
        parts = op.Add(self.after(op, made), scalar(op, "one", 1.0))  # [B, S, N]
        difference = op.Sub(made, self.stream(op, predicted))
        return op.Add(predicted, op.Mul(op.Unsqueeze(parts, [3]), op.Unsqueeze(difference, [2])))


def shapes(name: str, config: Any) -> dict[str, tuple[int, ...]]:
    """The tensors of a layer's `AltUp`."""
    count, hidden = config.altup_num_inputs, config.hidden_size
    return {
        f"{name}.correct_output_scale": (hidden,),
        f"{name}.correction_coefs.weight": (count, count),
        f"{name}.prediction_coefs.weight": (count * count, count),
        f"{name}.modality_router.weight": (count, hidden),
        f"{name}.router_norm.weight": (hidden,),
    }
