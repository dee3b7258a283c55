"""The step graph over a KV cache in 8 bits: a quarter of the memory, and of what a token after a long text reads.

It is a file next to the whole graph, over the same weights, that a host loads instead. A key or value is stored as
a signed byte, with one scale for each head and channel of a layer, found on the calibration text. Rotary positions turn
pairs of channels into each other, so that both of a pair have the scale of the longest pair: it holds at all positions.

Attention has two branches, because onnxruntime's attention over bytes takes each new token by itself. That is fast for
one token and takes four times as long for 256; so steps of more than `KV8_STEP` tokens make floats of the rows that are
there, attend to those, and write the new rows as bytes. Both write in place, into the buffers that the host bound. A
branch costs 2 us (onnxruntime 1.31).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike, NDArray

from edge.bundle import BundleWriter
from edge.export.graph.step import DECODER, FLOAT, INT64, add_constant, for_one_sequence, named
from edge.export.targets.cpu.files import write_graph
from edge.manifest import KV8, KV8_STEP, Graph
from edge.runtime.check.perplexity import pieces
from edge.runtime.engine.engine import Engine

PATH = "graphs/kv8.onnx"
OPSET, IR_VERSION = 24, 11  # that TensorScatter came with
INT8 = ir.DataType.INT8
# Of the largest values that the calibration text had: others have larger ones, all the more where it was short. Of 64
# tokens, 1.2 cuts values off in most channels: docs/lab/kv-cache.md.
MARGIN, MARGIN_OF_FEW = 1.2, 1.8
FEW = 256  # tokens, up to which a text is short
QUIET = 0.01  # of a layer's largest value, that no channel's is taken for less
PAST, COSINES, SCALES = 3, 7, 12  # inputs of GroupQueryAttention: key and value; the rotary table; their scales

# The largest absolute keys and values of a layer, by head and channel [heads, head_dim]; of channels that are rotated,
# the length of the longest pair.
Largest = tuple[NDArray[np.float32], NDArray[np.float32]]


def write_kv8(writer: BundleWriter, largest: Sequence[Largest], tokens: int) -> Graph:
    """Write the graph next to the decoder's, which was written before. largest: of each layer that attends, on a text
    of so many tokens."""
    margin = MARGIN if tokens > FEW else MARGIN_OF_FEW
    graph = ir.load(writer.staging / DECODER).graph
    for_one_sequence(graph)  # it counts tokens, and writes them after one number of rows
    shared = _Shared(graph)
    for node, found in zip(_attentions(graph), largest, strict=True):
        _replace(graph, node, _layer(node), found, shared, margin)
    graph.opset_imports[""] = OPSET
    return write_graph(writer, KV8, PATH, graph, ir_version=IR_VERSION)


def _attentions(graph: ir.Graph) -> list[ir.Node]:
    return [node for node in graph if node.op_type == "GroupQueryAttention"]


def _layer(node: ir.Node) -> int:
    """The layer whose keys and values a node reads."""
    past = node.inputs[PAST]
    assert past is not None and past.name is not None
    return int(past.name.split(".")[1])


_AFTER_ROTATION = ("Reshape", "SimplifiedLayerNormalization")  # what norms the heads of keys


def _rotated(node: ir.Node) -> int:
    """Return the number of channels of a head that an attention node rotates by position. A pair has one channel from
    each half of them."""
    table = node.inputs[COSINES] if len(node.inputs) > COSINES else None
    key = node.inputs[1].producer() if node.inputs[1] is not None else None
    while key is not None and key.op_type in _AFTER_ROTATION:
        key = key.inputs[0].producer() if key.inputs[0] is not None else None
    if key is not None and key.op_type == "RotaryEmbedding":  # before attention
        table = key.inputs[2]
    if table is None or table.shape is None:
        return 0
    half = table.shape[-1]
    assert isinstance(half, int)
    return 2 * half


def largest_of(engine: Engine, windows: Iterable[NDArray[np.int64]]) -> list[Largest]:
    """Return the largest keys and values of each layer that attends for `write_kv8`, from texts [S] that run through
    the decoder's graph."""
    layers = engine.bundle.manifest.kv.layers
    found = [no_rows(layer.heads, layer.head_dim) for layer in layers if layer.heads]
    rotated = [_rotated(node) for node in _attentions(ir.load(engine.bundle.path(DECODER)).graph)]
    cache = engine.new_cache()
    for tokens in windows:
        cache.reset()
        for piece in pieces(tokens[: cache.room]):
            engine.step(cache, piece)
        attended = [pair for pair, layer in zip(cache.buffers, layers, strict=True) if layer.heads]
        for (key, value), largest, turned in zip(attended, found, rotated, strict=True):
            take_largest(largest, key[0, :, : cache.length], value[0, :, : cache.length], turned)
    return found


def no_rows(heads: int, dim: int) -> Largest:
    """Return the initial largest keys and values, of no rows."""
    return np.zeros((heads, dim), np.float32), np.zeros((heads, dim), np.float32)


def take_largest(found: Largest, key: NDArray[np.float32], value: NDArray[np.float32], turned: int) -> None:
    """Update the largest keys and values with rows [heads, S, D]. The first `turned` channels of a key are rotated."""
    rows = np.abs(key)
    pairs = np.hypot(rows[..., : turned // 2], rows[..., turned // 2 : turned])
    rows[..., :turned] = np.concatenate([pairs, pairs], -1)
    np.maximum(found[0], rows.max(1), out=found[0])
    np.maximum(found[1], np.abs(value).max(1), out=found[1])


class _Shared:
    """Values that the branches of all layers read: the number of rows, and a flag for a large step."""

    def __init__(self, graph: ir.Graph) -> None:
        inputs = {value.name: value for value in graph.inputs}
        self._graph = graph
        self.start, self.axis = self.constant("start", [0]), self.constant("axis", [2])
        self.one, self.end = self.constant("one", [1]), self.constant("end", [2**62])
        self.unit, self.zero = self.constant("unit", 1, np.float32), self.constant("zero", 0, np.int8)
        size = ir.node("Size", [inputs["input_ids"]])
        large = ir.node("Greater", [size.outputs[0], self.constant("maximum", KV8_STEP)])
        total = ir.node("Cast", [inputs["total_sequence_length"]], {"to": INT64})
        past = ir.node("Sub", [total.outputs[0], size.outputs[0]])
        rows = ir.node("Reshape", [past.outputs[0], self.one])
        graph.insert_before(graph[0], named("kv8.step", [size, large, total, past, rows]))
        self.large, self.rows = large.outputs[0], rows.outputs[0]

    def constant(self, name: str, values: ArrayLike, dtype: type = np.int64) -> ir.Value:
        """An initializer of the whole graph, which its branches see."""
        return add_constant(self._graph, f"kv8.{name}", values, dtype)


def _replace(graph: ir.Graph, node: ir.Node, layer: int, largest: Largest, shared: _Shared, margin: float) -> None:
    """Put both branches of one layer where its attention was."""
    scales = []
    for part, values in zip(("key", "value"), largest, strict=True):
        scale = np.maximum(values, max(QUIET * float(values.max()), 1e-6)) * (margin / 127)
        scales.append(shared.constant(f"{layer}.{part}", scale.reshape(-1), np.float32))
        for value in (*graph.inputs, *graph.outputs):
            if value.name in (f"past.{layer}.{part}", f"present.{layer}.{part}"):
                value.type = ir.TensorType(INT8)
    shape = shared.constant(f"{layer}.shape", [1, largest[0].shape[0], 1, largest[0].shape[1]])
    name = f"kv8.{layer}"
    branches = {
        "then_branch": _large_step(graph, node, f"{name}.large", scales, shape, shared),
        "else_branch": _small_step(graph, node, f"{name}.small", scales),
    }
    graphs = [ir.AttrGraph(branch, body) for branch, body in branches.items()]
    chosen = ir.Node("", "If", [shared.large], graphs, num_outputs=3, name=name)
    ir.convenience.replace_nodes_and_values(graph, node, [node], [chosen], node.outputs, chosen.outputs)


def _small_step(graph: ir.Graph, node: ir.Node, name: str, scales: Sequence[ir.Value]) -> ir.Graph:
    """Attention over bytes, which writes the new rows too."""
    inputs = [*node.inputs, *[None] * (SCALES - len(node.inputs)), *scales]
    kinds = [ir.AttrString(f"{part}_quant_type", "PER_CHANNEL") for part in ("k", "v")]
    attend = _attention(node, inputs, [*kinds, ir.AttrInt64("kv_cache_bit_width", 8)])
    return _branch(graph, name, [attend], attend.outputs)


def _large_step(
    graph: ir.Graph, node: ir.Node, name: str, scales: Sequence[ir.Value], shape: ir.Value, shared: _Shared
) -> ir.Graph:
    """Attention over floats made of the rows that are there, and of the new ones, which are then written as bytes."""
    nodes, inputs, by_channel = list[ir.Node](), list(node.inputs), list[ir.Value]()

    def add(operator: str, given: Sequence[ir.Value | None], **attributes: int) -> ir.Value:
        nodes.append(ir.node(operator, given, attributes))
        return nodes[-1].outputs[0]

    for part, scale in enumerate(scales):
        by_channel.append(add("Reshape", [scale, shape]))
        rows = add("Slice", [node.inputs[PAST + part], shared.start, shared.rows, shared.axis])
        inputs[PAST + part] = add("Mul", [add("Cast", [rows], to=int(FLOAT)), by_channel[part]])
    attend = _attention(node, inputs, [])
    nodes.append(attend)
    made = [attend.outputs[0]]
    for part, present in enumerate(attend.outputs[1:]):
        rows = add("Slice", [present, shared.rows, shared.end, shared.axis])
        steps = add("QuantizeLinear", [add("Div", [rows, by_channel[part]]), shared.unit, shared.zero])
        made.append(add("TensorScatter", [node.inputs[PAST + part], steps, shared.rows], axis=-2))
    return _branch(graph, name, nodes, made)


def _attention(node: ir.Node, inputs: Sequence[ir.Value | None], attributes: Sequence[ir.Attr]) -> ir.Node:
    """An attention node like `node`, that reads these inputs and has further attributes."""
    own = [ir.Attr(attribute.name, attribute.type, attribute.value) for attribute in node.attributes.values()]
    return ir.Node(node.domain, node.op_type, inputs, [*own, *attributes], num_outputs=3)


def _branch(graph: ir.Graph, name: str, nodes: Sequence[ir.Node], outputs: Sequence[ir.Value]) -> ir.Graph:
    """A branch of these nodes, which reads the values of the graph around it."""
    return ir.Graph([], outputs, nodes=named(name, nodes), opset_imports=graph.opset_imports, name=name)
