"""Experts as modules: a router scores them for each token, and those with the highest scores compute.

B is the number of sequences, S the number of new tokens of each, E the number of experts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from onnxscript import nn

from edge.errors import ExportError
from edge.export.facts.experts import DOWN, EXPERT_PROJECTIONS, GATE, UP, Experts, expert_name, stack_name
from edge.export.graph.blocks import scaled
from edge.export.graph.operators import Lowering, Value
from edge.export.graph.weights import (
    Stored,
    StoredFloat,
    StoredGguf,
    StoredRows,
    Weights,
    parameter,
    view,
)

MEMBERS = (GATE, UP), (DOWN,)  # whose rows stand in turns
SILU = ("silu", "swish")  # transformers' names of the activation that operators over experts have


class ExpertMatrix(nn.Module):
    """A matrix of each of `count` experts, in one tensor: [E, rows, columns], or the bytes of a GGUF file.

    Raises:
        ExportError: it is stored in a way that experts have not.
    """

    def __init__(self, stored: Stored, count: int):
        super().__init__()
        if isinstance(stored, StoredRows):
            raise ExportError("The experts of this model cannot be stored with one scale for each row.")
        self.stored, self.rows, self.columns = stored, stored.rows // count, stored.columns
        if isinstance(stored, StoredGguf):
            (weight,) = stored.weights
            self.weight = parameter(weight)
            return
        each = [count, self.rows]
        if isinstance(stored, StoredFloat):
            self.weight = parameter(view(stored.weight, [*each, self.columns]))
            return
        self.weight = parameter(view(stored.weight, [*each, self.columns * stored.bits // 8]))
        self.scales = parameter(view(stored.scales, [*each, self.columns // stored.block_size]))
        zeros = stored.zero_points
        self.zero_points = None if zeros is None else parameter(view(zeros, [*each, zeros.nbytes // stored.rows]))

    def forward(self, op: Lowering) -> ExpertMatrix:
        """The matrix itself, whose parameters are the graph's from then on."""
        return self


def _bias(weights: Weights, block: str, count: int, members: Sequence[str]) -> nn.Parameter:
    """The biases [E, rows] of the experts' matrices, those of `members` in turns."""
    names = [expert_name(block, i, member, "bias") for i in range(count) for member in members]

    def in_turns(values: NDArray[np.float32]) -> NDArray[np.float32]:
        return values.reshape(count, len(members), -1).swapaxes(1, 2).reshape(count, -1)

    return weights.vector(names, f"{block}.experts.{'_'.join(members)}.bias", "experts", in_turns)


class MixtureOfExperts(nn.Module):
    """The block `name` of experts; see `Experts`. activation: of gates, by transformers' name.

    Raises:
        ExportError: another activation than SiLU, or gpt-oss's.
    """

    def __init__(self, weights: Weights, name: str, sizes: Experts, activation: str):
        super().__init__()
        if activation not in SILU and sizes.clamped is None:
            raise ExportError(f"The model's experts have the activation {activation!r}; only silu is computed here.")
        self.sizes = sizes
        self.router = weights.vector([f"{name}.{sizes.router}.weight"], f"{name}.{sizes.router}.weight", "router")
        of_router = f"{name}.{sizes.router}.bias"
        self.router_bias = weights.vector([of_router], of_router, "router") if sizes.biased else None
        bias = None if sizes.bias is None else f"{name}.{sizes.bias}"
        self.bias = None if bias is None else weights.vector([bias], bias, "router")
        self.matrices = nn.ModuleList([ExpertMatrix(each, sizes.count) for each in _stored(weights, name, sizes.count)])
        self.gate_up_bias, self.down_bias = (
            _bias(weights, name, sizes.count, members) if sizes.biased else None for members in MEMBERS
        )

    def forward(self, op: Lowering, x: Value) -> Value:
        """Compute [B, S, H] from [B, S, H]."""
        scores = op.matmul(x, self.router, transposed=True)
        if self.router_bias is not None:
            scores = op.Add(scores, self.router_bias)
        chances = None
        if self.sizes.sigmoids:
            scores = chances = op.Sigmoid(scores)
            if self.bias is not None:
                scores = op.Add(scores, self.bias)
        biases = [bias for bias in (self.gate_up_bias, self.down_bias) if bias is not None]
        made = op.experts(x, scores, chances, self.sizes, [matrix(op) for matrix in self.matrices], biases)
        return scaled(op, made, self.sizes.scale, "experts_scale")


class SharedExpert(nn.Module):
    """Experts and a feed-forward block that read the same: what both make is added. gate: a row [1, H], whose product
    with what they read makes a sigmoid that multiplies what the feed-forward block makes."""

    def __init__(self, experts: MixtureOfExperts, dense: nn.Module, gate: nn.Parameter | None = None):
        super().__init__()
        self.experts, self.dense, self.gate = experts, dense, gate

    def forward(self, op: Lowering, x: Value) -> Value:
        made = self.dense(op, x)
        if self.gate is not None:
            made = op.Mul(made, op.Sigmoid(op.matmul(x, self.gate, transposed=True)))
        return op.Add(self.experts(op, x), made)


def _stored(weights: Weights, block: str, count: int) -> list[Stored]:
    """The matrices of all experts: the gates', whose rows stand in turns with those of up, and down's; or all three,
    where they stay as a GGUF file has them."""
    if weights.has(stack_name(block, GATE)):
        return [weights.matrix(stack_name(block, member), "experts") for member in EXPERT_PROJECTIONS]
    # One size for both: the operator takes no other.
    size = weights.finest_block([expert_name(block, 0, member) for member in EXPERT_PROJECTIONS])
    return [
        weights.in_turns(
            [[expert_name(block, i, member) for member in members] for i in range(count)],
            f"{block}.experts.{'_'.join(members)}",
            "experts",
            size,
        )
        for members in MEMBERS
    ]
