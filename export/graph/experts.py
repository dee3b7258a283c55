"""Experts as modules: a router scores them for each token, and those with the highest scores compute.

B is the number of sequences, S the number of new tokens of each, E the number of experts.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnxscript import nn

from edge.errors import ExportError
from edge.export.facts.experts import DOWN, EXPERT_PROJECTIONS, GATE, UP, Experts, expert_name
from edge.export.graph.blocks import scaled
from edge.export.graph.operators import Lowering, Value
from edge.export.graph.weights import StoredBlocks, StoredFloat, Weights, parameter, view

SILU = ("silu", "swish")  # transformers' names of the activation that operators over experts have


class ExpertMatrix(nn.Module):
    """A matrix of each expert, in one tensor: [E, rows, columns]. members: of the checkpoint, whose rows stand in
    turns. size: of blocks of integers.

    Raises:
        ExportError: the experts' matrices are not all of one format.
    """

    def __init__(self, weights: Weights, block: str, count: int, members: Sequence[str], size: int | None):
        super().__init__()
        names = [[expert_name(block, i, member) for member in members] for i in range(count)]
        stored = weights.in_turns(names, f"{block}.experts.{'_'.join(members)}", "experts", size)
        if not isinstance(stored, StoredBlocks | StoredFloat):
            raise ExportError(f"The experts of {block} cannot be stored in {type(stored).__name__.lower()}.")
        self.stored, self.rows, self.columns = stored, stored.rows // count, stored.columns
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


class MixtureOfExperts(nn.Module):
    """The block `name` of experts; see `Experts`. activation: of gates, by transformers' name.

    Raises:
        ExportError: another activation than SiLU.
    """

    def __init__(self, weights: Weights, name: str, sizes: Experts, activation: str):
        super().__init__()
        if activation not in SILU:
            raise ExportError(f"The model's experts have the activation {activation!r}; only silu is computed here.")
        self.sizes = sizes
        self.router = weights.vector([f"{name}.{sizes.router}.weight"], f"{name}.{sizes.router}.weight", "router")
        bias = None if sizes.bias is None else f"{name}.{sizes.bias}"
        self.bias = None if bias is None else weights.vector([bias], bias, "router")
        # One size for both: the operator takes no other.
        size = weights.finest_block([expert_name(name, 0, member) for member in EXPERT_PROJECTIONS])
        self.gate_up = ExpertMatrix(weights, name, sizes.count, (GATE, UP), size)
        self.down = ExpertMatrix(weights, name, sizes.count, (DOWN,), size)

    def forward(self, op: Lowering, x: Value) -> Value:
        """Compute [B, S, H] from [B, S, H]."""
        scores = op.matmul(x, self.router, transposed=True)
        chances = None
        if self.sizes.sigmoids:
            scores = chances = op.Sigmoid(scores)
            if self.bias is not None:
                scores = op.Add(scores, self.bias)
        made = op.experts(x, scores, chances, self.sizes, self.gate_up(op), self.down(op))
        return scaled(op, made, self.sizes.scale, "experts_scale")
