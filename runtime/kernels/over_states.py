"""The operators of a graph that keep states as operators of our kernels."""

from __future__ import annotations

from typing import Any

from edge.runtime.kernels.library import DOMAIN, Kernels
from edge.runtime.kernels.nodes import LANES, OVER_STATES, THEIRS
from edge.runtime.kernels.wires import INT, numbers

LINEAR, CONVOLUTION = OVER_STATES
STATE = 3  # the input of both that is the state before the step
MOST_TAPS = 16  # of a convolution
# What their texts may be, and what our kernels read instead.
TEXTS = {
    LINEAR: ("update_rule", {b"gated": 0, b"gated_delta": 1}, "delta"),
    CONVOLUTION: ("activation", {b"none": 0, b"silu": 1, b"swish": 1}, "silu"),
}
KNOWN = {LINEAR: {"q_num_heads", "kv_num_heads", "scale"}, CONVOLUTION: {"channels_last"}}  # besides
CONSTANTS = {LINEAR: {}, CONVOLUTION: {"channels_last": 1}}  # that our kernels take for granted


def take_states(graph: Any, stored: dict[str, Any], kernels: Kernels) -> None:
    """Let our kernels compute linear attention and convolutions over the last tokens, where they can.

    stored: the tensors that are stored, by name.
    """
    if not kernels.state_rows:
        return
    sizes = {value.name: [d.dim_value for d in value.type.tensor_type.shape.dim] for value in graph.input}
    for node in graph.node:
        if node.op_type not in TEXTS or node.domain != THEIRS or len(node.input) <= STATE:
            continue
        text, choices, name = TEXTS[node.op_type]
        texts = [attribute for attribute in node.attribute if attribute.name == text]
        others = [attribute.name for attribute in node.attribute if attribute.name != text]
        if len(texts) != 1 or texts[0].s not in choices or not KNOWN[node.op_type].issuperset(others):
            continue
        given = numbers(node)
        if any(given.get(key) != value for key, value in CONSTANTS[node.op_type].items()):
            continue
        state = sizes.get(node.input[STATE], [])
        if not (_scans(state, kernels) if node.op_type == LINEAR else _convolves(state, stored.get(node.input[1]))):
            continue
        node.attribute.remove(texts[0])
        for each in CONSTANTS[node.op_type]:
            node.attribute.remove(next(attribute for attribute in node.attribute if attribute.name == each))
        node.attribute.add(name=name, i=choices[texts[0].s], type=INT)
        node.domain = DOMAIN


def _scans(state: list[int], kernels: Kernels) -> bool:
    """True if linear attention is computed over states of these sizes: [B, heads, rows, columns]."""
    if len(state) != 4:
        return False
    rows, columns = state[2:]
    return 0 < rows <= kernels.state_rows and rows % 2 == 0 and columns > 0 and columns % LANES == 0


def _convolves(state: list[int], weight: Any) -> bool:
    """True if a convolution with these weights [channels, 1, taps] is computed over states [B, taps - 1, channels]."""
    if weight is None or len(weight.dims) != 3 or len(state) != 3:
        return False
    channels, one, taps = weight.dims
    fits = 1 < taps <= MOST_TAPS and channels > 0 and channels % LANES == 0
    return fits and one == 1 and state[1:] == [taps - 1, channels]
