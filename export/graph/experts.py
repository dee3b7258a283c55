"""Experts as modules: a router scores them for each token, and those with the highest scores compute.

B is the number of sequences, S the number of new tokens of each, E the number of experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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


class SomeExperts(NamedTuple):
    """Experts of one format.

    members: their numbers among all. matrices: gate and up in turns, and down; or all three, of a GGUF file. biases:
    of gate and up in turns, and of down; or none.
    """

    members: Sequence[int]
    matrices: Sequence[ExpertMatrix]
    biases: Sequence[nn.Parameter]


class _Part(nn.Module):
    """Experts of one format as a module, which gives itself: its parameters are the graph's from then on."""

    def __init__(self, members: Sequence[int], stored: Sequence[Stored], biases: Sequence[nn.Parameter]):
        super().__init__()
        self._members, self._biases = members, biases
        self.matrices = nn.ModuleList([ExpertMatrix(each, len(members)) for each in stored])
        if biases:
            self.gate_up_bias, self.down_bias = biases

    def forward(self, op: Lowering) -> SomeExperts:
        return SomeExperts(self._members, [matrix(op) for matrix in self.matrices], self._biases)


def _bias(weights: Weights, block: str, experts: Sequence[int], members: Sequence[str], suffix: str) -> nn.Parameter:
    """The biases [E, rows] of experts' matrices, those of `members` in turns."""
    names = [expert_name(block, i, member, "bias") for i in experts for member in members]

    def in_turns(values: NDArray[np.float32]) -> NDArray[np.float32]:
        return values.reshape(len(experts), len(members), -1).swapaxes(1, 2).reshape(len(experts), -1)

    return weights.vector(names, f"{block}.experts.{'_'.join(members)}.bias{suffix}", "experts", in_turns)


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
        self.parts = nn.ModuleList([*_parts(weights, name, sizes)])

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
        made = op.experts(x, scores, chances, self.sizes, [part(op) for part in self.parts])
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


def _parts(weights: Weights, block: str, sizes: Experts) -> list[_Part]:
    """The experts of a block, those whose matrices are of one format together."""
    everyone = range(sizes.count)
    found: dict[tuple[int, ...], list[Stored]] = {}
    if weights.has(stack_name(block, GATE)):  # as a GGUF file has them
        found[tuple(everyone)] = [weights.matrix(stack_name(block, member), "experts") for member in EXPERT_PROJECTIONS]
    else:
        # One size for both: the operator takes no other.
        size = weights.finest_block([expert_name(block, 0, member) for member in EXPERT_PROJECTIONS])
        for members in MEMBERS:
            names = [[expert_name(block, i, member) for member in members] for i in everyone]
            stored_as = f"{block}.experts.{'_'.join(members)}"
            for experts, stored in weights.in_turns(names, stored_as, "experts", size).items():
                found.setdefault(experts, []).append(stored)
    if any(len(stored) < len(MEMBERS) for stored in found.values()):
        raise ExportError(
            f"{block} has experts whose matrices are of several formats, which no operator computes; choose --weights "
            "int8."
        )

    def biases(experts: Sequence[int]) -> list[nn.Parameter]:
        if not sizes.biased:
            return []
        suffix = f".{experts[0]}" if len(found) > 1 else ""
        return [_bias(weights, block, experts, members, suffix) for members in MEMBERS]

    return [_Part(experts, stored, biases(experts)) for experts, stored in found.items()]
