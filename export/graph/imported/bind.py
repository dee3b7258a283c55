"""Passes that make another program's decoder graph one of a bundle.

Such a graph takes the past keys and values [1, heads, P, head_dim] and gives them with the new ones, P + S. A bundle's
writes new rows into buffers of fixed capacity, in place. Where attention does that itself (GroupQueryAttention) it
reads the buffer. Elsewhere the rows that are there are copied out of the buffer for each step, which is what makes such
a graph slower, and the new ones are written back.

What else it asks for follows from the number of tokens: a mask of ones, positions, whether there is a past.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.convenience import replace_all_uses_with
from onnx_ir.passes.common import RemoveUnusedNodesPass

from edge.errors import ExportError
from edge.export.graph.imported.signature import BRANCH, IDS, KEPT_LOGITS, MASK, POSITIONS, Kept, Signature
from edge.export.graph.step import FLOAT, INT32, INT64, add_constant

THEIRS = "com.microsoft"
ATTENTION, PAST_KEY = "GroupQueryAttention", 3  # the input with the past keys; values follow
PREFIX = "edge."  # of the names of what is added
# Operators that compute each row by itself from their first input, if all others are constants.
BY_ROWS = {("", "Cast"), ("", "Identity"), ("", "MatMul"), (THEIRS, "MatMulNBits"), (THEIRS, "FusedMatMul")}


def bind(model: ir.Model, signature: Signature) -> None:
    """Give a graph the inputs and outputs of a bundle's step, for one sequence: see docs/reference/bundle-format.md.

    Raises:
        ExportError: it has two graphs in one file that cannot be parted.
    """
    graph, given = model.graph, [id(value) for value in model.graph.outputs]
    step = _Step(graph)
    for name, value in signature.inputs.items():
        replace_all_uses_with(value, step.fed(name, value), replace_graph_outputs=True)
    if BRANCH in signature.inputs:
        _take_branch(graph)
    made = dict(zip(given, graph.outputs, strict=True))  # by the choice, or by its branch now
    outputs = [_logits(step, made[id(signature.logits)], signature)]
    for kept in signature.kept:
        outputs.append(_bind_kept(step, kept, made[id(kept.present)]))
    graph.inputs.clear()
    graph.inputs.extend(step.inputs)
    graph.outputs.clear()
    graph.outputs.extend(outputs)
    graph.sort()
    RemoveUnusedNodesPass()(model)


class _Step:
    """The inputs of a bundle's step, and values made of them. Nodes are added at the end: the graph is sorted later."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph, self._nodes, self._constants = graph, 0, 0
        self._rows = dict[int, ir.Value]()
        for value in (*graph.inputs, *graph.outputs):  # whose names the new ones take
            value.name = f"{PREFIX}before.{value.name}"
        self.inputs = list[ir.Value]()
        self.ids = self.input("input_ids", INT64, [1, "S"])
        self.positions = self.input("position_ids", INT64, [1, "S"])
        total = self.input("total_sequence_length", INT32, [])
        self.rows = self.input("logit_rows", INT64, ["R"])
        one = self.constant([1])
        self.total = self("Reshape", [self("Cast", [total], to=INT64), one])
        self.size = self("Reshape", [self("Size", [self.ids]), one])
        self.start = self("Sub", [self.total, self.size])
        self.zero, self.axis = self.constant([0]), self.constant([2])

    def input(self, name: str, dtype: ir.DataType, shape: Sequence[int | str]) -> ir.Value:
        """A new input of the graph."""
        value = ir.val(name, dtype, shape)
        self.inputs.append(value)
        return value

    def constant(self, values: Any, dtype: Any = np.int64) -> ir.Value:
        self._constants += 1
        return add_constant(self._graph, f"{PREFIX}constant.{self._constants}", values, dtype)

    def __call__(self, op_type: str, inputs: Sequence[ir.Value], **attributes: Any) -> ir.Value:
        """The result of a new node."""
        self._nodes += 1
        node = ir.node(op_type, inputs, attributes, name=f"{PREFIX}{self._nodes}.{op_type}")
        node.outputs[0].name = f"{node.name}.0"
        self._graph.append(node)
        return node.outputs[0]

    def fed(self, name: str, asked: ir.Value) -> ir.Value:
        """The value that an input of the graph before gets."""
        rank = 0 if asked.shape is None else len(asked.shape)
        if name == MASK:
            one = self.constant([[1]], asked.dtype.numpy() if asked.dtype is not None else np.int64)
            return self("Expand", [one, self("Concat", [self.constant([1]), self.total], axis=0)])
        if name == BRANCH:
            return self.constant([True] if rank else True, np.bool_)
        if name == KEPT_LOGITS:
            shape = self.constant([1] if rank else np.zeros(0))
            found = self("Reshape", [self("Sub", [self.size, self.first_row]), shape])
        else:
            found = {IDS: self.ids, POSITIONS: self.positions}[name]
        return found if asked.dtype == INT64 else self("Cast", [found], to=asked.dtype)

    @property
    def first_row(self) -> ir.Value:
        """The first row whose logits are wanted, [1]."""
        return self("Reshape", [self("ReduceMin", [self.rows], keepdims=1), self.constant([1])])

    def before(self, buffer: ir.Value) -> ir.Value:
        """The rows of a buffer that are there before the step."""
        return self("Slice", [buffer, self.zero, self.start, self.axis])

    def written(self, buffer: ir.Value, rows: ir.Value, heads: int) -> ir.Value:
        """A buffer with new rows [1, heads, S, head_dim] after those that are there, in the same memory."""
        return self("ScatterND", [buffer, self._places(heads), rows])

    def _places(self, heads: int) -> ir.Value:
        """The place of each new row of each head, [1, heads, S, 3]."""
        if heads not in self._rows:
            scalar = self.constant(np.zeros(0))
            ends = [self("Reshape", [value, scalar]) for value in (self.start, self.total)]
            rows = self("Reshape", [self("Range", [*ends, self.constant(1)]), self.constant([1, 1, -1, 1])])
            shape = self("Concat", [self.constant([1, heads]), self.size, self.constant([1])], axis=0)
            sequence, head = np.zeros((1, heads, 1, 1)), np.arange(heads).reshape(1, heads, 1, 1)
            parts = [self("Expand", [each, shape]) for each in (self.constant(sequence), self.constant(head), rows)]
            self._rows[heads] = self("Concat", parts, axis=3)
        return self._rows[heads]


def _bind_kept(step: _Step, kept: Kept, present: ir.Value) -> ir.Value:
    """Bind keys or values to their buffer; returns the output that writes it. present: with the new rows."""
    heads, dim = kept.sizes
    buffer = step.input(f"past.{kept.name}", FLOAT, [1, heads, "C", dim])
    maker, place = present.producer(), present.index()
    _count_shapes(step, kept)
    uses = [(use.node, use.idx) for use in kept.past.uses()]
    own = PAST_KEY - 1 + (place or 0)  # the input for what this output gives
    attends = maker is not None and (maker.op_type, maker.domain) == (ATTENTION, THEIRS)
    if maker is not None and attends and uses == [(maker, own)]:
        maker.replace_input_with(own, buffer)
        output = present
    elif maker is not None and _joins(maker, kept.past):
        written = step.written(buffer, _value(maker.inputs[1]), heads)
        replace_all_uses_with(kept.past, step.before(buffer))
        whole = step("Slice", [written, step.zero, step.total, step.axis])
        replace_all_uses_with(present, whole, replace_graph_outputs=True)
        output = written
    else:
        replace_all_uses_with(kept.past, step.before(buffer))
        rows = step("Slice", [present, step.start, step.total, step.axis])
        output = step.written(buffer, rows, heads)
    output.name, output.type, output.shape = f"present.{kept.name}", ir.TensorType(FLOAT), buffer.shape
    return output


def _count_shapes(step: _Step, kept: Kept) -> None:
    """Let what asks for the number of past rows get it: a buffer has more."""
    heads, dim = kept.sizes
    for node in [use.node for use in kept.past.uses() if use.node.op_type == "Shape" and not use.node.domain]:
        sizes = step("Concat", [step.constant([1, heads]), step.start, step.constant([dim])], axis=0)
        start, end = (node.attributes.get_int(name, None) for name in ("start", "end"))
        if start or end is not None:
            last = 4 if end is None else end
            sizes = step("Slice", [sizes, step.constant([start or 0]), step.constant([last])])
        replace_all_uses_with(node.outputs[0], sizes, replace_graph_outputs=True)
        assert node.graph is not None, "a node of a file that was read"
        node.graph.remove(node, safe=True)


def _joins(node: ir.Node, past: ir.Value) -> bool:
    """True if a node joins the past rows and the new ones."""
    axis = node.attributes.get_int("axis", None)
    return node.op_type == "Concat" and axis in (2, -2) and len(node.inputs) == 2 and node.inputs[0] is past


def _logits(step: _Step, logits: ir.Value, signature: Signature) -> ir.Value:
    """The logits [1, R, V] of the rows that are wanted. Where a product makes them, it reads those rows alone."""
    rows = step.rows
    if KEPT_LOGITS in signature.inputs:  # it leaves out the rows before the first one
        rows = step("Sub", [rows, step.first_row])
        first = logits
    else:
        first = _first_by_rows(logits)
    if first is logits:
        logits = step("Gather", [logits, rows], axis=1)
    else:
        users = [(use.node, use.idx) for use in first.uses()]
        taken = step("Gather", [first, rows], axis=1)
        for node, place in users:
            node.replace_input_with(place, taken)
    if signature.logits.dtype not in (None, FLOAT):
        logits = step("Cast", [logits], to=FLOAT)
    logits.name, logits.type, logits.shape = "logits", ir.TensorType(FLOAT), ir.Shape([1, "R", signature.vocab])
    return logits


def _first_by_rows(logits: ir.Value) -> ir.Value:
    """The value from which on the graph computes each row of its logits by itself, and nothing else of it."""
    value = logits
    while (node := value.producer()) is not None and (node.domain, node.op_type) in BY_ROWS:
        others = [each for each in node.inputs[1:] if each is not None]
        first = node.inputs[0]
        if first is None or len(node.outputs) > 1 or any(each.const_value is None for each in others):
            break
        if first.const_value is not None or len(first.uses()) > 1 or first.is_graph_output() or _transposed(node):
            break
        value = first
    return value


def _transposed(node: ir.Node) -> bool:
    return any(node.attributes.get_int(name, 0) for name in ("transA", "transBatchA", "transBatchB"))


def _value(value: ir.Value | None) -> ir.Value:
    assert value is not None, "the graph of a file that was read"
    return value


def _take_branch(graph: ir.Graph) -> None:
    """Put the branch with a past in the place of the choice between it and the one without: it takes a past of no rows,
    too.

    Raises:
        ExportError: there is no such choice in the graph itself.
    """
    choices = [
        node for node in graph if node.op_type == "If" and node.inputs[0] is not None and _is_true(node.inputs[0])
    ]
    if not choices:
        raise ExportError(f"The graph has the input {BRANCH}, and nothing that chooses by it.")
    for choice in choices:
        branch = choice.attributes["then_branch"].as_graph()
        outputs, nodes = list(branch.outputs), list(branch)
        there = {str(value.name) for node in graph for value in node.outputs} | set(graph.initializers)
        branch.outputs.clear()
        branch.remove(nodes)
        for node in nodes:
            for value in node.outputs:
                if value.name in there:
                    value.name = f"{PREFIX}branch.{value.name}"
        graph.insert_before(choice, nodes)
        replace_all_uses_with(list(choice.outputs), outputs, replace_graph_outputs=True)
        graph.remove(choice, safe=True)


def _is_true(value: ir.Value) -> bool:
    """True if a value is the constant that chooses the branch with a past, or passes it on."""
    node = value.producer()
    while (
        node is not None and node.op_type in ("Squeeze", "Reshape", "Identity", "Gather") and node.inputs[0] is not None
    ):
        value = node.inputs[0]
        node = value.producer()
    return value.const_value is not None and bool(np.all(value.const_value.numpy())) and value.dtype == ir.DataType.BOOL
