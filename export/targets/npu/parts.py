"""A graph too large for one binary, cut between layers into several that run one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import onnx_ir as ir

from edge.export.graph.step import remove_unused
from edge.export.targets.npu.qdq import FLOAT, name_of

TOKENS = "rows"  # the input because of which each part needs the one before


def parts_of(build: Callable[[], ir.Model], limit: int) -> list[ir.Model]:
    """A float graph, in parts of at most `limit` weights each where its layers allow that. What is added up between two
    layers is an output of one part and an input of the next. build: makes the whole graph."""
    whole = build()
    cuts = _cuts(whole.graph, limit)
    if not cuts:
        return [whole]
    del whole
    return [_part(build(), begin, end) for begin, end in zip([None, *cuts], [*cuts, None], strict=True)]


def _cuts(graph: ir.Graph, limit: int) -> list[str]:
    """The values to cut after, by name."""
    cuts: list[str] = []
    begin, place, before = 0, "", 0  # weights before the part; where it can end, and the weights before that
    for name, weights in _places(graph):
        if weights - begin > limit and before > begin:
            cuts.append(place)
            begin = before
        place, before = name, weights
    return cuts


def _places(graph: ir.Graph) -> Iterator[tuple[str, int]]:
    """The values that a graph can be cut after, and the weights before: sums that are all that the rest needs of what
    came from the tokens. Last comes the graph's end."""
    reads = Counter(name_of(value) for node in graph for value in node.inputs if value is not None)
    needed, weights = {TOKENS}, dict[str, int]()
    for node in graph:
        given = [value for value in node.inputs if value is not None]
        reads.subtract(map(name_of, given))
        weights |= {name_of(value): value.const_value.size for value in given if value.const_value is not None}
        if needed & set(map(name_of, given)):
            needed |= set(map(name_of, node.outputs))
        needed = {name for name in needed if reads[name] > 0}
        if node.op_type == "Add" and needed == {name_of(node.outputs[0])}:
            yield name_of(node.outputs[0]), sum(weights.values())
    yield "", sum(weights.values())


def _part(model: ir.Model, begin: str | None, end: str | None) -> ir.Model:
    """Cut the part of a graph after the value `begin` and up to the value `end`. `model` itself is changed."""
    graph = model.graph
    values = {name_of(value): value for node in graph for value in node.outputs}
    places = {name: i for i, name in enumerate(values)}
    first, last = places[begin] if begin else -1, places[end] if end else len(places)
    outputs = [value for value in graph.outputs if first < places[name_of(value)] <= last]
    if end is not None:
        values[end].type = ir.TensorType(FLOAT)
        outputs.append(values[end])
    graph.outputs.clear()
    graph.outputs.extend(outputs)
    if begin is not None:
        given = ir.val(begin, FLOAT, values[begin].shape)
        values[begin].replace_all_uses_with(given)
        graph.inputs.append(given)
    remove_unused(graph)
    for value in [value for value in graph.inputs if not value.uses()]:
        graph.inputs.remove(value)
    return model
