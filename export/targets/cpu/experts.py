"""Experts by onnxruntime's operators: integers in blocks by one that runs the chosen experts alone; floats, which are
there to be compared with, by products with all of them. Weights of GGUF files are for one of ours.

That operator has one format for all of its experts. Experts of several formats are several operators. Each gets the
weights of its own experts, which are 0 for those that a token does not choose."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

import onnx_ir as ir

from edge.errors import ExportError
from edge.export.facts.experts import EXPERT_PROJECTIONS, check_block
from edge.export.graph.operators import Value, scalar
from edge.export.graph.weights import StoredBlocks, StoredFloat, StoredGguf
from edge.export.targets.cpu.products import gguf_parts
from edge.runtime.kernels.gguf import OF_EXPERTS

if TYPE_CHECKING:
    from edge.export.facts.experts import Clamped, Experts
    from edge.export.graph.experts import ExpertMatrix, SomeExperts
    from edge.export.targets.cpu.lowering import CPU

INT8_ACTIVATIONS = 4  # accuracy_level, as of MatMulNBits
INTERLEAVED = 1  # swiglu_fusion: rows of gate and up stand in turns, the one form that the CPU's operator has


def experts(
    op: CPU, x: Value, scores: Value, weights: Value | None, sizes: Experts, parts: Sequence[SomeExperts]
) -> Value:
    """QMoE takes the k highest scores of each token. Its weights are those of `weights`, or the softmax of the chosen
    scores, which is what the softmax of all of them is once it adds up to one."""
    if len(parts) == 1:
        return _of_part(op, x, scores, weights, sizes, parts[0])
    shares = _shares(op, scores, weights, sizes)
    made = []
    for part in parts:
        own = op.Gather(shares, op.Constant(value_ints=list(part.members)), axis=-1)
        count = len(part.members)
        few = dataclasses.replace(sizes, count=count, chosen=min(sizes.chosen, count), normalized=False)
        made.append(_of_part(op, x, own, own, few, part))
    return reduce(op.Add, made)


def _of_part(op: CPU, x: Value, scores: Value, weights: Value | None, sizes: Experts, part: SomeExperts) -> Value:
    matrices, biases = part.matrices, part.biases
    if weights is None and not sizes.normalized:
        weights = op.Softmax(scores, axis=-1)
    flat, clamped = [-1, sizes.count], sizes.clamped
    if len(matrices) == len(EXPERT_PROJECTIONS):
        return op.of_gguf.GgufExperts(
            x,
            op.Reshape(scores, flat),
            None if weights is None else op.Reshape(weights, flat),
            *(matrix.weight for matrix in matrices),
            *biases,
            k=sizes.chosen,
            normalize_routing_weights=int(sizes.normalized),
            experts=sizes.count,
            **_gguf_parts(matrices),
            **({} if clamped is None else {"alpha": clamped.alpha, "beta": 1.0, "limit": clamped.limit}),
        )
    gate_up, down = matrices
    first, second = gate_up.stored, down.stored
    if isinstance(first, StoredFloat) and isinstance(second, StoredFloat):
        return _of_floats(op, x, scores, weights, sizes, matrices, biases)
    if not isinstance(first, StoredBlocks) or not isinstance(second, StoredBlocks):
        raise ExportError("The experts' matrices are floats in part; choose another --weights.")
    for stored in (first, second):
        _check(stored, first.block_size)
    limit = {} if clamped is None else {"swiglu_limit": clamped.limit}
    of_gate_up, of_down = biases or (None, None)
    return op.fused.QMoE(
        x,
        op.Reshape(scores, flat),
        gate_up.weight,
        gate_up.scales,
        of_gate_up,
        down.weight,
        down.scales,
        of_down,
        None,
        None,
        None,
        gate_up.zero_points,
        down.zero_points,
        None,
        None if weights is None else op.Reshape(weights, flat),
        k=sizes.chosen,
        activation_type="swiglu",
        swiglu_fusion=INTERLEAVED,
        activation_alpha=1.0 if clamped is None else clamped.alpha,
        activation_beta=0.0 if clamped is None else 1.0,
        normalize_routing_weights=int(sizes.normalized),
        expert_weight_bits=first.bits,
        fc2_expert_weight_bits=second.bits,
        block_size=first.block_size,
        accuracy_level=INT8_ACTIVATIONS,
        **limit,
    )


def _gguf_parts(matrices: Sequence[ExpertMatrix]) -> dict[str, int]:
    made: dict[str, int] = {}
    for prefix, matrix in zip(OF_EXPERTS, matrices, strict=True):
        assert isinstance(matrix.stored, StoredGguf)
        made |= gguf_parts(matrix.stored, prefix)
    return made


def _check(stored: StoredBlocks, block: int) -> None:
    """Raise ExportError where the operator does not take a matrix."""
    if stored.block_size != block:
        raise ExportError(
            f"The experts' matrices are in blocks of {block} and of {stored.block_size}; choose one --block-size."
        )
    check_block(stored.columns, block, zero_points=stored.zero_points is not None)


def _of_floats(
    op: CPU,
    x: Value,
    scores: Value,
    weights: Value | None,
    sizes: Experts,
    matrices: Sequence[ExpertMatrix],
    biases: Sequence[Value],
) -> Value:
    (gate_up, down), (of_gate_up, of_down) = matrices, biases or (None, None)
    shares = _shares(op, scores, weights, sizes)
    by_expert = op.Reshape(op.Transpose(shares, perm=[2, 0, 1]), [sizes.count, -1, 1])
    rows = op.Reshape(x, [1, -1, gate_up.columns])
    both = op.Reshape(_product(op, rows, gate_up, of_gate_up), [sizes.count, -1, sizes.wide, 2])
    gate, up = op.Split(both, axis=-1, num_outputs=2, _outputs=2)
    active = op.Mul(op.silu(gate), up) if sizes.clamped is None else _clamped(op, sizes.clamped, gate, up)
    inner = op.Reshape(active, [sizes.count, -1, sizes.wide])
    made = op.Mul(_product(op, inner, down, of_down), by_expert)
    return op.Reshape(op.ReduceSum(made, op.Constant(value_ints=[0])), op.Shape(x))


def _shares(op: CPU, scores: Value, weights: Value | None, sizes: Experts) -> Value:
    """The weights of all experts [B, S, E], which are zeros but for those that a token chooses. A sum by an operator of
    its own would depend on where a row lies in memory."""
    best, chosen = op.TopK(scores, op.Constant(value_ints=[sizes.chosen]), axis=-1, _outputs=2)
    if weights is None and sizes.normalized:
        shares = op.Softmax(best, axis=-1)
    else:
        shares = op.GatherElements(op.Softmax(scores, axis=-1) if weights is None else weights, chosen, axis=-1)
        if sizes.normalized:
            one = sizes.chosen == 1
            each = [shares] if one else op.Split(shares, axis=-1, num_outputs=sizes.chosen, _outputs=sizes.chosen)
            shares = op.Div(shares, reduce(op.Add, each))
    return op.ScatterElements(op.Sub(scores, scores), chosen, shares, axis=-1)


def _product(op: CPU, x: Value, matrix: ExpertMatrix, bias: Value | None) -> Value:
    """The product of each expert: [E, T, rows] of [1 or E, T, columns]."""
    made = op.matmul(x, _floats(op, matrix), transposed=True)
    return made if bias is None else op.Add(made, op.Unsqueeze(bias, [1]))


def _clamped(op: CPU, how: Clamped, gate: Value, up: Value) -> Value:
    limit, least = scalar(op, "experts_limit", how.limit), scalar(op, "experts_least", -how.limit)
    gate = op.Min(gate, limit)
    up = op.Add(op.Clip(up, least, limit), scalar(op, "experts_one", 1.0))
    return op.Mul(op.Mul(gate, op.Sigmoid(op.Mul(gate, scalar(op, "experts_alpha", how.alpha)))), up)


def _floats(op: CPU, matrix: ExpertMatrix) -> Value:
    if matrix.weight.dtype == ir.DataType.FLOAT16:
        return op.Cast(matrix.weight, to=ir.DataType.FLOAT)
    return matrix.weight
