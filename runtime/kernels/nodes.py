"""Attention, gates and norms of a graph as operators of our kernels."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from edge.embedding_format import VECTORS
from edge.manifest import KVLayer
from edge.runtime.kernels.library import DOMAIN, INT8_DOMAIN, AttentionLimits
from edge.runtime.kernels.wires import INT, NUMBER, Wires, branches, number, numbers, set_inputs

THEIRS = "com.microsoft"
EXPERTS = "QMoE"
OVER_STATES = "LinearAttention", "CausalConvWithState"
PRODUCT, ATTENTION, FULL = "MatMulNBits", "GroupQueryAttention", "MultiHeadAttention"
POSITION_BIAS, LIKELIEST = "PositionBias", "Likeliest"
LOGITS, BRANCHES = "logits", "attention_bias"  # an output of a decoder's graph; an input of one over branches
# What such a graph can be asked for: how many tokens of each row, int64 [1], 0 where nobody says; which
# ones are the likeliest, the best first, and the logarithms of their probabilities, both [rows, count].
LIKELIEST_COUNT, LIKELIEST_TOKENS, LIKELIEST_LOGARITHMS = "likeliest.count", "likeliest.tokens", "likeliest.logarithms"
PARTS = "parts"  # of a product with matrices of GGUF files: the number of them; see `gguf`
FULL_BIAS = 5  # the input of FULL that is added to scores
FLOAT, INT64 = 1, 7  # TensorProto.DataType
NORM, NORM_ALONE = "SkipSimplifiedLayerNormalization", "SimplifiedLayerNormalization"  # of a sum; of a row
CACHED = 3  # outputs of attention that writes keys and values; one that reads another layer's has the first alone
BIAS, SINK = 10, 11  # inputs of GroupQueryAttention
# Its attributes that change what it computes, and that our kernels do not know.
UNKNOWN = ("smooth_softmax", "qk_output", "rotary_interleaved")
SOFTCAP = "softcap"  # that some of our kernels do not know: see `AttentionLimits`
# What our kernels read of an operator, or what makes no difference to them: with other attributes it stays
# onnxruntime's.
KNOWN = {
    PRODUCT: {"K", "N", "bits", "block_size", "accuracy_level", "by_rows"},  # see `rows`
    ATTENTION: {"num_heads", "kv_num_heads", "scale", "local_window_size", "do_rotary", "kv_cache_bit_width",
                "k_quant_type", "v_quant_type", SOFTCAP, *UNKNOWN},
    FULL: {"num_heads", "scale"},
    NORM: {"epsilon"},
    NORM_ALONE: {"epsilon", "axis", "stash_type"},
}  # fmt: skip
LANES = 16  # that the sizes of heads, and of rows with a gate or a norm, must be multiples of
SMALL_STEP = "else_branch"  # of the two that attention over bytes has for onnxruntime
SUM = 3  # the output of NORM that is the sum
NORM_MORE = 6  # the first input of a product of ours that MatMulNBits has not: what is added to its rows; then weights
GATES = {"QuickGelu": 1, "FastGelu": 2}  # activations that products of ours take along; of the first, silu alone
# Operators of onnxruntime that move numbers, or compute each one or each row by itself.
BY_ROWS = {
    "Add", "ArgMax", "Cast", "CausalConvWithState", "Concat", "Constant", "Div", "Expand", "FastGelu", "Gather",
    "GatherBlockQuantized", "GatherElements", "GatherND", "Gelu", "Greater", "Identity", "If", "LayerNormalization",
    "LinearAttention", "Mul", "QuickGelu", "RMSNormalization", "ReduceMax", "Relu", "Reshape", "RotaryEmbedding",
    "ScatterElements", "Shape", "Sigmoid", "SimplifiedLayerNormalization", "Size", "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization", "Slice", "Softmax", "Softplus", "Split", "Squeeze", "Sub", "Tanh", "TopK",
    "Transpose", "Unsqueeze",
}  # fmt: skip

# The same of texts of one length, in graphs that make vectors.
BY_TEXTS = {
    "Abs", "CastLike", "ConstantOfShape", "Div", "GreaterOrEqual", "LayerNormalization", "Max", "Range", "ReduceL2",
    "ReduceMean", "RotaryEmbedding", "Tanh", "Where",
}  # fmt: skip


def has_known_attributes(node: Any) -> bool:
    """True if our kernels know all attributes of one of their operators, and each of them is there once."""
    names = [attribute.name for attribute in node.attribute]
    return KNOWN[node.op_type].issuperset(names) and len({*names}) == len(names)


def takes_bytes(graph: Any, layers: Sequence[KVLayer], limits: AttentionLimits) -> bool:
    """True if our kernels can compute all attention of a decoder's graph with an int8 KV cache: see
    `take_attention`."""
    small = [_small_step(node) for node in graph.node if node.op_type == "If"]
    if len(small) != len(layers) - len(_recurrent(graph, layers)) or not _heads_fit(layers, limits):
        return False
    return all(node and _attends(node, limits) for node in small)


def _recurrent(graph: Any, layers: Sequence[KVLayer]) -> set[int]:
    """The layers that keep a state and attend to nothing."""
    names = [value.name.split(".") for value in graph.input if value.name.startswith("past.")]
    kept = {int(number) for _, number, part in names if part not in ("key", "value")}
    return {layer for layer in kept if not layers[layer].heads}


def _heads_fit(layers: Sequence[KVLayer], limits: AttentionLimits) -> bool:
    return all(_head_fits(layer.head_dim, limits) for layer in layers if layer.heads)


def _head_fits(size: int, limits: AttentionLimits) -> bool:
    return size % LANES == 0 and 0 < size <= limits.largest_head


def _last_size(value: Any) -> int:
    """The last size of a graph's input; 0 where it is not known."""
    sizes = value.type.tensor_type.shape.dim
    return sizes[-1].dim_value if sizes else 0


def take_attention(graph: Any, layers: list[KVLayer], limits: AttentionLimits) -> None:
    """Let our kernels compute the attention of a graph, where they can for its heads. With an int8 KV cache they need
    no second branch for large steps."""
    if not _heads_fit(layers, limits):
        return
    if takes_bytes(graph, layers, limits):
        _for_many_sequences(graph)
    for node in graph.node:
        small = _small_step(node)
        if small is not None and _attends(small, limits):
            outputs = [*node.output]
            node.CopyFrom(small)
            del node.output[:]
            node.output.extend(outputs)
        if _attends(node, limits):
            node.domain = INT8_DOMAIN if any(each.name == "kv_cache_bit_width" for each in node.attribute) else DOMAIN
    wires, gone = Wires(graph), list[int]()
    alone = any(value.name == VECTORS for value in graph.output)
    # What an encoder made is among them.
    fitting = {value.name for value in graph.input if _head_fits(_last_size(value), limits)}
    for node in wires.nodes:
        if (node.op_type, node.domain) != (FULL, THEIRS) or not has_known_attributes(node):
            continue
        if len(node.input) == 3 and fitting.issuperset(node.input[1:]):
            node.domain = DOMAIN
        elif (split := _parted(node, wires, limits, alone=alone)) is not None:
            whole = wires.nodes[split].input[0]
            set_inputs(node, [whole, "", "", "", "", *node.input[FULL_BIAS:]])
            node.domain = DOMAIN
            gone.append(split)
    if gone:
        wires.drop(gone)


def _parted(node: Any, wires: Wires, limits: AttentionLimits, *, alone: bool) -> int | None:
    """The node that parts the rows of a product of ours into queries, keys and values, where attention reads those and
    a bias, as in T5's encoder. Without one, over 1,500 frames of Whisper's, onnxruntime's own is 6% faster. alone: it
    may read no bias."""
    query, key, value, *more = node.input
    split = wires.maker(query)
    if split is None or len(more) not in ((0, FULL_BIAS - 2) if alone else (FULL_BIAS - 2,)) or any(more[:-1]):
        return None
    parts = wires.nodes[split]
    if parts.op_type != "Split" or [*parts.output] != [query, key, value] or len(parts.input) != 1:
        return None
    if any(wires.only_reader(name) is None for name in parts.output) or numbers(parts).get("axis") not in (2, -1):
        return None
    product = wires.maker(parts.input[0])
    if product is None or (wires.nodes[product].op_type, wires.nodes[product].domain) != (PRODUCT, DOMAIN):
        return None
    width = numbers(wires.nodes[product])["N"] // 3
    return split if _head_fits(width // numbers(node)["num_heads"], limits) else None


def add_likeliest(graph: Any) -> None:
    """Add an output with the likeliest tokens of each row to a graph that takes branches of a text: beams need no other
    logits."""
    if all(value.name != LOGITS for value in graph.output) or all(value.name != BRANCHES for value in graph.input):
        return
    graph.input.add(name=LIKELIEST_COUNT).type.tensor_type.elem_type = INT64
    graph.initializer.add(name=LIKELIEST_COUNT, data_type=INT64, dims=[1], raw_data=np.int64(0).tobytes())
    graph.output.add(name=LIKELIEST_LOGARITHMS).type.tensor_type.elem_type = FLOAT
    graph.output.add(name=LIKELIEST_TOKENS).type.tensor_type.elem_type = INT64
    inputs, outputs = [LOGITS, LIKELIEST_COUNT], [LIKELIEST_LOGARITHMS, LIKELIEST_TOKENS]
    graph.node.add(name=LIKELIEST, op_type=LIKELIEST, domain=DOMAIN, input=inputs, output=outputs)


def take_position_bias(graph: Any, weights: dict[str, Any]) -> None:
    """Replace the ten operators of the bias of a T5 decoder's attention by one: together they cost more than a
    layer."""
    wires, found = Wires(graph), False

    def made(name: str, op_type: str) -> Any:
        place = wires.maker(name)
        return wires.nodes[place] if place is not None and wires.nodes[place].op_type == op_type else None

    def first_columns(node: Any, axis: int) -> tuple[str, str] | None:
        """Return the input of a Slice that takes the first columns, and the input of the graph with their number in 32
        bits."""
        if node is None or len(node.input) != 4:
            return None
        start, last = (whole_numbers(weights.get(name)) for name in (node.input[1], node.input[3]))
        size = made(node.input[2], "Reshape")
        count = None if size is None else made(size.input[0], "Cast")
        return None if count is None or (start, last) != ([0], [axis]) else (node.input[0], count.input[0])

    for node in wires.nodes:
        if node.op_type != "Add":
            continue
        table, allowed = made(node.input[0], "Gather"), first_columns(made(node.input[1], "Slice"), 3)
        far = None if table is None or numbers(table) != {"axis": 1} else made(table.input[1], "Sub")
        if far is None or allowed is None:
            continue
        tokens, keys = made(far.input[0], "Reshape"), first_columns(made(far.input[1], "Slice"), 0)
        stored = weights.get(table.input[0])
        if tokens is None or whole_numbers(weights.get(tokens.input[1])) != [-1, 1] or keys is None:
            continue
        if allowed[1] != keys[1] or stored is None or len(stored.dims) != 2:
            continue
        node.op_type, node.domain = POSITION_BIAS, DOMAIN
        set_inputs(node, [table.input[0], tokens.input[0], keys[0], *allowed])
        del node.attribute[:]
        found = True
    if found:
        wires.drop([])  # what nothing reads any more


def whole_numbers(tensor: Any) -> list[int] | None:
    """Values of a stored tensor of int64; None for another tensor."""
    if tensor is None or tensor.data_type != INT64 or tensor.data_location:
        return None
    return [int(number) for number in np.frombuffer(tensor.raw_data, np.int64)]


def _for_many_sequences(graph: Any) -> None:
    """Let a graph take several sequences, whose branches for large steps of one alone go."""
    for value in (*graph.input, *graph.output):
        sizes = value.type.tensor_type.shape.dim
        if sizes and sizes[0].dim_value == 1:
            sizes[0].Clear()
            sizes[0].dim_param = "B"


def take_neighbours(graph: Any, weights: dict[str, Any]) -> None:
    """Let products compute the operators next to them in a decoder: the gate of a feed-forward layer, and norms of a
    sum.

    weights: the tensors that are stored, by name.
    """
    wires, gone = Wires(graph), list[int]()
    for place, node in enumerate(wires.nodes):
        if (node.op_type, node.domain) != (PRODUCT, DOMAIN):
            continue
        gone += _with_gate(node, wires)
        before = wires.maker(node.input[0])
        if before is not None and wires.only_reader(node.input[0]) == place and not numbers(node)["K"] % LANES:
            gone += _with_norm(node, place, before, wires, weights)
    if gone:
        wires.drop(gone)


def _with_gate(node: Any, wires: Wires) -> list[int]:
    """Let a product give silu(gate) * up, or gelu(gate) * up, where that is made of what it gives; what it takes."""
    whole = wires.only_reader(node.output[0])
    if whole is None or wires.nodes[whole].op_type != "Split" or numbers(wires.nodes[whole]).get("axis") != -1:
        return []
    split = wires.nodes[whole]
    if len(split.input) != 1 or len(split.output) != 2 or numbers(node)["N"] % (2 * LANES):
        return []
    gate, up = split.output
    place, last = wires.only_reader(gate), wires.only_reader(up)
    if place is None or last is None:
        return []
    activation, product = wires.nodes[place], wires.nodes[last]
    if activation.op_type not in GATES or len(activation.input) != 1:  # or with a bias
        return []
    if activation.op_type == "QuickGelu" and number(activation, "alpha", 1.702) != 1:
        return []
    if product.op_type != "Mul" or wires.only_reader(activation.output[0]) != last:
        return []
    node.output[0] = product.output[0]
    node.attribute.add(name="gate", i=GATES[activation.op_type], type=INT)
    return [whole, place, last]


def _with_norm(node: Any, place: int, before: int, wires: Wires, weights: dict[str, Any]) -> list[int]:
    """Let a product take the norm of a sum along, where that is what it reads; what it takes."""
    norm = wires.nodes[before]
    if not _is_norm(norm, weights) or norm.op_type != NORM:
        return []
    (total,) = norm.output[SUM : SUM + 1] or ("",)
    if any(reader < place for reader in wires.readers(total)):
        return []
    set_inputs(node, [norm.input[0], *[*node.input, *[""] * NORM_MORE][1:NORM_MORE], *norm.input[1:]])
    if total:
        node.output.append(total)
    node.attribute.add(name="norm", i=1, type=INT)
    node.attribute.add(name="epsilon", f=number(norm, "epsilon", 1e-12), type=NUMBER)
    return [before]


def take_norms(graph: Any, weights: dict[str, Any]) -> None:
    """Let our kernels compute the norms that are part of no product, too: a graph cut between layers then gives the
    same bits."""
    for node in graph.node:
        if not _is_norm(node, weights):
            continue
        if node.op_type == NORM_ALONE:
            set_inputs(node, [node.input[0], "", node.input[1]])
            epsilon = number(node, "epsilon", 1e-5)
            del node.attribute[:]
            node.attribute.add(name="epsilon", f=epsilon, type=NUMBER)
        node.op_type, node.domain = NORM, DOMAIN


def _is_norm(node: Any, weights: dict[str, Any]) -> bool:
    """True if a node is a norm of onnxruntime's that our kernels compute."""
    if node.op_type in (NORM, NORM_ALONE) and not has_known_attributes(node):
        return False
    if node.op_type == NORM_ALONE:
        if node.domain or len(node.output) != 1 or numbers(node).get("axis", -1) != -1:
            return False
    elif (node.op_type, node.domain, len(node.input)) != (NORM, THEIRS, 3) or any(node.output[1:SUM]):
        return False
    weight = weights.get(node.input[-1])
    return weight is not None and len(weight.dims) == 1 and weight.dims[0] % LANES == 0


def is_independent(node: Any, more: Collection[str] = (), matrices: Collection[str] = ()) -> bool:
    """True if a row of a node's results depends on that row's inputs alone, in every bit. more: operators that are
    known to be such, besides `BY_ROWS`. matrices: tensors whose products with vectors [B, K, 1] are, too: each is a
    product by itself."""
    if node.op_type == "MatMul" and node.input and node.input[0] in matrices:
        return True
    if node.domain not in (DOMAIN, INT8_DOMAIN) and node.op_type not in BY_ROWS and node.op_type not in more:
        return False
    return all(is_independent(inner, more) for branch in branches(node) for inner in branch.node)


def takes_mixed_steps(graph: Any, limits: AttentionLimits) -> bool:
    """True if a step of a graph may have, in a row, a token of each of several texts and several of the last one: all
    that reads of texts is attention of our kernels. What reads them in branches, or reads what another layer has kept,
    is that where the graph `is_independent`."""
    past = {value.name for value in graph.input if value.name.startswith("past.")}
    readers = [node for node in graph.node if past.intersection(node.input)]
    ours = all(node.op_type == ATTENTION and node.domain in (DOMAIN, INT8_DOMAIN) for node in readers)
    biased = any(len(node.input) > BIAS and node.input[BIAS] for node in readers)
    return limits.mixed and bool(readers) and ours and not biased


def _small_step(node: Any) -> Any:
    """The attention over bytes of a node that chooses between two, or None."""
    if node.op_type != "If":
        return None
    nodes = {attribute.name: attribute.g for attribute in node.attribute}[SMALL_STEP].node
    return nodes[0] if len(nodes) == 1 else None


def _attends(node: Any, limits: AttentionLimits) -> bool:
    """True if a node is attention that our kernels compute."""
    if (node.op_type, node.domain) != (ATTENTION, THEIRS) or not has_known_attributes(node):
        return False
    if len(node.input) > SINK and node.input[SINK] and not limits.sinks:
        return False
    if not limits.more and (number(node, SOFTCAP, 0) or len(node.output) < CACHED):
        return False
    return not any(attribute.name in UNKNOWN and (attribute.i or attribute.f) for attribute in node.attribute)
