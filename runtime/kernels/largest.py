"""The search of a decoder's graph for the token with the largest logit as one operator of our kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from edge.runtime.kernels.library import DOMAIN
from edge.runtime.kernels.nodes import FLOAT, LOGITS, whole_numbers
from edge.runtime.kernels.wires import Wires, numbers, set_inputs

LARGEST = "Largest"
TOKENS = "tokens"  # an output of a decoder's graph, as LOGITS is


def take_largest(graph: Any, weights: dict[str, Any]) -> None:
    """Replace the search for the token with the largest logit by one operator. Exporters write it in two steps, the
    block of logits with the largest one and then the place in it: eight operators of onnxruntime's, each of which
    starts threads.

    weights: the tensors that are stored, by name.
    """
    wires = Wires(graph)
    if wires.maker(LOGITS) is None or not _looks_in_blocks(wires, weights):
        return
    last = wires.nodes[wires.maker(TOKENS) or 0]
    last.op_type, last.domain = LARGEST, DOMAIN
    set_inputs(last, [LOGITS])
    del last.attribute[:]
    wires.drop([])  # what nothing reads any more


def _looks_in_blocks(wires: Wires, weights: dict[str, Any]) -> bool:
    """True if the tokens are `block * width + place in it`, of the block with the largest logit. The logits may be
    filled up with -infinity to whole blocks."""

    def made(name: str, op_type: str, **wanted: int) -> list[str]:
        """Inputs of the operator of onnxruntime's that makes a value; empty where it is another operator."""
        place = wires.maker(name)
        if place is None:
            return []
        node = wires.nodes[place]
        same = (node.op_type, node.domain) == (op_type, "") and numbers(node) == wanted
        return [*node.input] if same and len(node.attribute) == len(wanted) else []

    def stored(name: str) -> list[int]:
        return whole_numbers(weights.get(name)) or []

    match made(TOKENS, "Reshape"):
        case [total, shape] if stored(shape) == [0, -1]:
            pass
        case _:
            return False
    match made(total, "Add"):
        case [start, place]:
            pass
        case _:
            return False
    match made(start, "Mul"):
        case [best, width]:
            pass
        case _:
            return False
    match made(best, "ArgMax", axis=-1, keepdims=1), made(place, "ArgMax", axis=-1, keepdims=1):
        case [[tops], [row]]:
            pass
        case _:
            return False
    match made(tops, "ReduceMax", keepdims=0), made(row, "GatherND", batch_dims=2):
        case [[blocks, axes], [same, which]] if stored(axes) == [3] and (same, which) == (blocks, best):
            pass
        case _:
            return False
    match made(blocks, "Reshape"):
        case [logits, shape]:
            sizes = stored(shape)
        case _:
            return False
    if len(sizes) != 4 or sizes[:2] != [0, -1] or stored(width) != sizes[3:] or min(sizes[2:]) < 1:
        return False
    if logits == LOGITS:
        return True
    match made(logits, "Pad"):
        case [source, pads, filler]:
            more = stored(pads)
        case _:
            return False
    fills = weights.get(filler)
    never = fills is not None and fills.data_type == FLOAT and fills.raw_data == np.float32(-np.inf).tobytes()
    return source == LOGITS and len(more) == 6 and not any(more[:5]) and 0 <= more[5] < sizes[3] and never
