"""Files of graphs in a bundle."""

from __future__ import annotations

import onnx_ir as ir

from edge.bundle import BundleWriter
from edge.export.graph.step import BATCH, IR_VERSION
from edge.export.targets.cpu.lowering import CPU
from edge.manifest import Graph


def write_graph(
    writer: BundleWriter,
    role: str,
    path: str,
    graph: ir.Graph,
    *,
    ir_version: int = IR_VERSION,
    parts: int = 1,
    precise_layers: int = 0,
) -> Graph:
    """Write a finished graph into the bundle; returns what the manifest says of it.

    parts, precise_layers: of an encoder, see `Graph`.
    """
    for node in graph.all_nodes():
        node.metadata_props.clear()  # the modules' names stay in the nodes' names
    model = ir.Model(graph, ir_version=ir_version, producer_name="edge")
    writer.write_file(path, ir.to_proto(model).SerializeToString())
    inputs = {value.name: value.shape for value in graph.inputs}
    ids = inputs.get("input_ids")
    return Graph(
        role,
        path,
        batch=ids is not None and ids[0] == BATCH,
        trees=any(str(name).startswith("attention_bias") for name in inputs),
        tokens=any(value.name == "tokens" for value in graph.outputs),
        scores=any(map(CPU.keeps_scores, graph.all_nodes())),
        parts=parts,
        precise_layers=precise_layers,
    )
