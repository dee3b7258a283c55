"""Linear layers and embeddings over stored matrices, whatever these are stored in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxscript import nn

from edge.export.facts.family import Biased, has_bias
from edge.export.graph.operators import Lowering, Value, scalar
from edge.export.graph.weights import (
    Stored,
    StoredBlocks,
    StoredFloat,
    StoredGguf,
    StoredRows,
    Weights,
    parameter,
    view,
)


class Linear(nn.Module):
    """y = x W^T + b for one stored matrix."""

    def __init__(self, stored: Stored, bias: nn.Parameter | None = None):
        super().__init__()
        self.stored = stored
        self.bias = bias
        if isinstance(stored, StoredGguf):
            self.weights = [parameter(weight) for weight in stored.weights]
            for i, weight in enumerate(self.weights):
                setattr(self, f"weight_{i}", weight)
            return
        self.weight = parameter(stored.weight)
        if not isinstance(stored, StoredFloat):
            self.scales = parameter(stored.scales)
        if isinstance(stored, StoredBlocks):
            self.zero_points = None if stored.zero_points is None else parameter(stored.zero_points)

    def forward(self, op: Lowering, x: Any) -> Value:
        """Compute [B, S, N] from x [B, S, K], or from the result of `op.shared` for it."""
        return op.product(x, self)


class Head(Linear):
    """The product that makes logits, [B, S, V] float32."""

    def forward(self, op: Lowering, x: Any) -> Value:
        return op.logits(x, self)


def linear(weights: Weights, name: str, group: str, *, bias: bool = False) -> Linear:
    """The checkpoint's linear layer `name`."""
    b = weights.vector([f"{name}.bias"], f"{name}.bias", group) if bias else None
    return Linear(weights.matrix(f"{name}.weight", group), b)


class Projections(nn.Module):
    """Linear layers `members` of the block `name`, which read the same input: one product where their formats allow it.

    Returns one packed output, or one for each member. bias: whether they have one, or which of them.
    """

    def __init__(
        self, weights: Weights, name: str, members: Sequence[str], packed: str, group: str, *, bias: Biased = False
    ):
        super().__init__()
        names = [f"{name}.{member}" for member in members]
        biased = [f"{name}.{member}" for member in members if has_bias(bias, member)]
        stored = weights.matrices([f"{n}.weight" for n in names], f"{name}.{packed}.weight", group)
        if len(stored) == 1:
            b = None
            if biased:
                lacking = {f"{n}.bias": weights.rows(f"{n}.weight") for n in names if n not in biased}
                b = weights.vector([f"{n}.bias" for n in names], f"{name}.{packed}.bias", group, zeros=lacking)
            self.parts = nn.ModuleList([Linear(stored[0], b)])
        else:
            self.parts = nn.ModuleList([linear(weights, n, group, bias=n in biased) for n in names])

    def forward(self, op: Lowering, x: Value) -> list[Value]:
        parts: list[Any] = [*self.parts]
        read = op.shared(x, parts)
        return [part(op, read) for part in self.parts]


class Embedding(nn.Module):
    """The rows of the token embedding; `scale` multiplies them."""

    def __init__(self, weights: Weights, name: str, *, scale: float | None = None, group: str = "embedding"):
        super().__init__()
        stored = weights.matrix(f"{name}.weight", group)
        assert not isinstance(stored, StoredRows), "an embedding is read row by row; this form is transposed"
        self.stored = stored
        self.scale = scale
        if isinstance(stored, StoredFloat):
            self.weight = parameter(stored.weight)
        elif isinstance(stored, StoredGguf):
            self.weight = parameter(stored.weights[0])
        else:
            self.weight = parameter(view(stored.weight, [stored.rows, stored.weight.nbytes // stored.rows]))
            self.scales = parameter(stored.scales)
            self.zero_points = None if stored.zero_points is None else parameter(stored.zero_points)

    def forward(self, op: Lowering, input_ids: Value) -> Value:
        x = op.rows(input_ids, self)
        return x if self.scale is None else op.Mul(x, scalar(op, "scale", self.scale))
