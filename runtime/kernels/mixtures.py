"""Experts of a graph by our kernels: onnxruntime's QMoE over matrices of all experts, and the scores that choose them.

Each matrix is packed as one, whose columns are those of expert after expert, so that a step reads the pages of those
that its tokens have chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from edge.runtime.kernels.library import DOMAIN
from edge.runtime.kernels.packed import Matrix
from edge.runtime.kernels.wires import INT, NUMBER, number, numbers, set_inputs

SCORES = "FusedMatMul"
LANES = 16  # that rows, and channels within an expert, must be multiples of
INT8_ACTIVATIONS = 4  # accuracy_level: activations are rounded to 8 bits
INTERLEAVED = 1  # swiglu_fusion: the columns of gate and up stand in turns
GATE, DOWN = "gate.", "down."  # before the attributes of a matrix
# Inputs: what is scored, all scores, and weights where they are not the scores' softmax; of the two matrices, each the
# weights, scales and zero points; and their biases.
ROWS, PROBABILITIES, WEIGHTS = 0, 1, 14
INPUTS = {GATE: (2, 3, 11), DOWN: (5, 6, 12)}
BIASES = 4, 7
_WHOLE_NUMBERS = {"k", "normalize_routing_weights", "swiglu_fusion", "expert_weight_bits", "fc2_expert_weight_bits",
                  "block_size", "accuracy_level"}  # fmt: skip
_NUMBERS = {"alpha": ("activation_alpha", 1.0), "beta": ("activation_beta", 0.0), "limit": ("swiglu_limit", 0.0)}
_OTHERS = {"activation_type"} | {name for name, _ in _NUMBERS.values()}

Start = Callable[[Any, int, list[int]], int | None]  # offset of a stored tensor of a type and sizes


def matrices_of(node: Any, stored: dict[str, Any], start: Start, *, biased: bool) -> dict[str, Matrix]:
    """The matrices of experts, by what the names of their attributes begin with; none where our kernels do not compute
    what the node does, or what is stored does not fit. biased: kernels compute experts with biases and other gates."""
    names = [attribute.name for attribute in node.attribute]
    if len({*names}) < len(names) or not (_WHOLE_NUMBERS | _OTHERS).issuperset(names):
        return {}
    given, texts = numbers(node), {each.name: each.s for each in node.attribute if each.HasField("s")}
    gates = _gates(node)
    if texts.get("activation_type") != b"swiglu" or gates["alpha"] <= 0:
        return {}
    if gates["limit"] < 0 or (gates["limit"] == 0 and "swiglu_limit" in names):
        return {}
    if (given.get("swiglu_fusion"), given.get("accuracy_level")) != (INTERLEAVED, INT8_ACTIVATIONS):
        return {}
    inputs = [*node.input, *[""] * (WEIGHTS + 1)][: WEIGHTS + 1]
    if not biased and (any(inputs[place] for place in BIASES) or gates != {k: v for k, (_, v) in _NUMBERS.items()}):
        return {}
    read = {ROWS, PROBABILITIES, WEIGHTS, *INPUTS[GATE], *INPUTS[DOWN], *BIASES}
    if any(name for place, name in enumerate(inputs) if place not in read) or len(node.input) > WEIGHTS + 1:
        return {}
    sizes = [stored[inputs[each[0]]].dims if inputs[each[0]] in stored else [] for each in INPUTS.values()]
    if any(len(each) != 3 for each in sizes):
        return {}
    bits = given.get("expert_weight_bits", 4), given.get("fc2_expert_weight_bits", given.get("expert_weight_bits", 4))
    count, wide, width = sizes[0][0], sizes[0][1] // 2, sizes[1][1]
    if not count or not 0 < given.get("k", 0) <= count or width % LANES or wide % LANES or not width or not wide:
        return {}
    found = {}
    for (prefix, places), columns, read_by_one, of in zip(
        INPUTS.items(), (2 * wide, width), (width, wide), bits, strict=True
    ):
        matrix = _matrix(
            [stored.get(inputs[place]) if inputs[place] else None for place in places],
            [count, columns, read_by_one],
            of,
            given.get("block_size", 0),
            start,
        )
        if matrix is None or (inputs[places[2]] and matrix.zero_points is None):
            return {}
        found[prefix] = matrix
    return found


def _gates(node: Any) -> dict[str, float]:
    """The numbers of a node's activation, by our kernels' names."""
    return {name: number(node, theirs, usual) for name, (theirs, usual) in _NUMBERS.items()}


def _matrix(tensors: list[Any], sizes: list[int], bits: int, block: int, start: Start) -> Matrix | None:
    count, columns, inputs = sizes
    if bits not in (2, 4, 8) or block < 1 or inputs % block:
        return None
    blocks, uint8, float32 = inputs // block, 2, 1
    weights = start(tensors[0], uint8, [count, columns, inputs * bits // 8])
    scales = start(tensors[1], float32, [count, columns, blocks])
    zeros = start(tensors[2], uint8, [count, columns, math.ceil(blocks * bits / 8)])
    if weights is None or scales is None or scales % 4:
        return None
    return Matrix(bits, inputs, count * columns, block, weights, scales, zeros)


def make_ours(node: Any, matrices: dict[str, Matrix]) -> None:
    """Let a node be an operator of ours over packed matrices."""
    given, gates = numbers(node), _gates(node)
    inputs = [*node.input, *[""] * (WEIGHTS + 1)]
    set_inputs(node, [inputs[place] for place in (ROWS, PROBABILITIES, WEIGHTS, *BIASES)])
    del node.attribute[:]
    node.domain = DOMAIN
    count = matrices[DOWN].columns // matrices[GATE].inputs
    kept = {"k": given["k"], "normalize_routing_weights": given.get("normalize_routing_weights", 0), "experts": count}
    for prefix, matrix in matrices.items():
        sizes = {"bits": matrix.bits, "K": matrix.inputs, "N": matrix.columns, "block_size": matrix.block}
        kept |= {f"{prefix}{name}": size for name, size in sizes.items()}
    for name, size in kept.items():
        node.attribute.add(name=name, i=size, type=INT)
    for name, value in gates.items():
        if value != _NUMBERS[name][1]:
            node.attribute.add(name=name, f=value, type=NUMBER)


def take_scores(graph: Any, stored: dict[str, Any]) -> None:
    """Let our kernels compute the products with float matrices that make scores: onnxruntime's give a row other bits by
    how many rows are next to it, and another bit may choose another expert."""
    for node in graph.node:
        if node.op_type != SCORES or node.domain == DOMAIN or len(node.input) != 2:
            continue
        matrix = stored.get(node.input[1])
        if numbers(node) != {"transB": 1} or any(each.type == NUMBER for each in node.attribute) or matrix is None:
            continue
        if matrix.data_type == 1 and len(matrix.dims) == 2 and matrix.dims[1] % LANES == 0 and matrix.dims[1]:
            node.domain = DOMAIN
