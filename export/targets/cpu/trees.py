"""The step graph of a decoder with the input that trees of tokens need: what each token attends to.

It is a file next to the whole graph, over the same weights, that a host loads instead. As an input of the one graph it
would cost those who draft no trees 1% of every step at short contexts and 3% at 2,000 tokens (SmolLM2-135M, 4 bits).
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from edge.bundle import BundleWriter
from edge.errors import ExportError
from edge.export.graph.step import DECODER, FLOAT, INT64, add_constant, for_one_sequence, named
from edge.export.targets.cpu.files import write_graph
from edge.manifest import Manifest

TREE = "graphs/tree.onnx"
ROLE = "tree"
BIAS = 10  # which input of GroupQueryAttention


def write_trees(writer: BundleWriter, manifest: Manifest) -> Manifest:
    """Write the graph next to the decoder's, which was written before; the manifest with it.

    Raises:
        ExportError: the model has an encoder, whose decoder takes trees as it is, or layers that look no farther back
            than a window: its start is counted in rows, of which a tree has more than its texts have tokens.
    """
    if manifest.encoder is not None:
        raise ExportError(
            f"{manifest.name} is an encoder-decoder, whose steps take trees as they are; leave out --trees."
        )
    if any(layer.window is not None for layer in manifest.kv.layers):
        raise ExportError(
            f"{manifest.name} has layers that attend to a window of tokens, which trees would shift; leave out --trees."
        )
    graph = ir.load(writer.staging / DECODER).graph
    for_one_sequence(graph)
    given = ir.val("attention_bias", FLOAT, [1, 1, "S", "C"])
    total = next(value for value in graph.inputs if value.name == "total_sequence_length")
    graph.inputs.append(given)
    cast = ir.node("Cast", [total], {"to": INT64})
    length = ir.node("Reshape", [cast.outputs[0], add_constant(graph, "trees.one", [1])])
    start, axis = add_constant(graph, "trees.start", [0]), add_constant(graph, "trees.axis", [3])
    slice = ir.node("Slice", [given, start, length.outputs[0], axis])  # rows that there are, of those there is room for
    graph.insert_before(graph[0], named("trees", [cast, length, slice]))
    for node in graph:
        if node.op_type == "GroupQueryAttention":
            node.resize_inputs(max(len(node.inputs), BIAS + 1))
            node.replace_input_with(BIAS, slice.outputs[0])
    return dataclasses.replace(manifest, graphs=[*manifest.graphs, write_graph(writer, ROLE, TREE, graph)])
