"""The decoder's step graph in units, of which a step may leave some out.

The first unit is the embedding and the first layer, the last one the last layer, the final norm and the head: no policy
leaves these out. Between them stand units of a few layers each, or halves of layers. Each of them is the branch of an
`If`: the input `run.U` says whether unit U runs, and else the residual stream goes past it, and its keys and values
stay as they are. A unit holds rows of its own in the KV cache, so that the inputs which count them are there once for
each: `seqlens_k.U` and so on. A host loads this file instead of the whole graph's, over the same weights.
"""

from __future__ import annotations

import dataclasses
from collections import ChainMap, Counter
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from edge.bundle import BundleWriter
from edge.errors import ExportError
from edge.export.graph.step import DECODER
from edge.export.targets.cpu.files import write_graph
from edge.manifest import SKIP, Manifest, Segment
from edge.runtime.kernels.units import cut_names
from edge.runtime.skip.units import spans

PATH = "graphs/skip.onnx"
# Inputs that each unit has by itself.
PER_UNIT = ("seqlens_k", "total_sequence_length", "key_positions", "attention_bias")
RESULTS = ("logits", "tokens")  # what the last unit says
Values = MutableMapping[ir.Value, ir.Value]  # of the whole graph, to those of this one


def write_skip(writer: BundleWriter, manifest: Manifest, unit: int | str) -> Manifest:
    """Write the graph next to the decoder's, which was written before, and return the manifest with it.

    unit: layers of each unit between the first and the last, or "ffn" for half-layers.

    Raises:
        ExportError: there are too few layers to leave any out.
    """
    layers = manifest.dims.num_layers
    if layers < 3:
        raise ExportError(
            f"{manifest.name} has {layers} decoder layers, of which the first and the last always run, so there is "
            "nothing to skip; leave out --segments."
        )
    if not all(layer.heads for layer in manifest.kv.layers):
        raise ExportError(
            f"Layers of {manifest.name} read the keys and values of others, so that none can be left out; leave out "
            "--segments."
        )
    segments = spans(layers, unit)
    # Policies that choose by the prompt read the stream. As an output it stays in memory until the step is done.
    watched = unit == "ffn" or manifest.routers is not None
    graph = _guarded(ir.load(writer.staging / DECODER).graph, segments, watched)
    graphs = [*manifest.graphs, write_graph(writer, SKIP, PATH, graph)]
    return dataclasses.replace(manifest, segments=segments, graphs=graphs)


@dataclass
class _Unit:
    """A unit in the whole graph: the residual stream that it reads and writes (the last one writes results), the keys
    and values of its layers before and after the step, and its nodes."""

    always: bool
    reads: list[ir.Value]
    writes: list[ir.Value]
    caches: list[tuple[ir.Value, ir.Value]]
    nodes: list[ir.Node]


def _units(whole: ir.Graph, segments: Sequence[Segment]) -> list[_Unit]:
    made = {output.name: output for node in whole for output in node.outputs}
    given = {value.name: value for value in whole.inputs}
    units: list[_Unit] = []
    reads: list[ir.Value] = []
    for segment in segments:
        half = "attention" if segment.part == "attention" else "feed_forward"
        names = RESULTS if segment.part == "end" else cut_names(segment.layers[-1], half)
        writes = [made[name] for name in names if name in made]
        layers = [] if segment.part == "feed_forward" else segment.layers
        rows = [f"{i}.{part}" for i in layers for part in ("key", "value")]
        caches = [(given[f"past.{name}"], made[f"present.{name}"]) for name in rows]
        wanted = [*writes, *(present for _, present in caches)]
        always = segment.part in ("start", "end")
        units.append(_Unit(always, reads, writes, caches, _between(whole, reads, wanted)))
        reads = writes
    return units


def _between(whole: ir.Graph, reads: Sequence[ir.Value], wanted: list[ir.Value]) -> list[ir.Node]:
    """The nodes that make what is wanted of what is read, in their order."""
    found = set[ir.Node]()
    while wanted:
        value = wanted.pop()
        node = None if value in reads else value.producer()
        if node is not None and node not in found:
            found.add(node)
            wanted += [value for value in node.inputs if value is not None]
    return [node for node in whole if node in found]


def _guarded(whole: ir.Graph, segments: Sequence[Segment], watched: bool) -> ir.Graph:
    """The graph of all units, those that a step may leave out in an `If` each.

    watched: whether the residual stream that each unit but the first reads is an output, `at.U.x` and `at.U.added`.
    """
    units = _units(whole, segments)
    graph = ir.Graph([], [], nodes=[], opset_imports=whole.opset_imports, name=SKIP)
    values: Values = {value: _like(value) for value in whole.inputs if value.name not in PER_UNIT}
    graph.inputs.extend(values.values())
    for value in whole.initializers.values():  # within a branch a weight would stay next to its packed copy
        values[value] = _like(value)
        graph.register_initializer(values[value])
    uses = Counter(node for unit in units for node in unit.nodes)
    common = [node for node in whole if uses[node] > 1 and not _counts(node)]
    graph.extend(_copy(node, values) for node in common)
    for number, unit in enumerate(units):
        unit.nodes = [node for node in unit.nodes if node not in common]
        made = _add(graph, number, unit, values)
        ends = number == len(units) - 1
        names = RESULTS if ends else (f"at.{number + 1}.x", f"at.{number + 1}.added")
        for value, name in zip(unit.writes, names, strict=False):
            made[value].name = name
            values[value] = made[value]
        for _, present in unit.caches:
            made[present].name = present.name
        graph.outputs.extend(new for old, new in made.items() if watched or ends or old not in unit.writes)
    return graph


def _add(graph: ir.Graph, number: int, unit: _Unit, outside: Values) -> Values:
    """Add a unit to the graph; what it writes, and its keys and values after the step."""
    values = ChainMap({}, outside)
    own = [value for node in unit.nodes for value in node.inputs if value is not None and value.name in PER_UNIT]
    for value in dict.fromkeys(own):
        values[value] = _like(value, f".{number}")
        graph.inputs.append(values[value])
    nodes = [_copy(node, values, f".{number}") for node in unit.nodes]
    wanted = [*unit.writes, *(present for _, present in unit.caches)]
    made = [values[value] for value in wanted]
    if unit.always:
        graph.extend(nodes)
        return dict(zip(wanted, made, strict=True))
    runs = ir.Value(name=f"run.{number}", shape=ir.Shape([]), type=ir.TensorType(ir.DataType.BOOL))
    graph.inputs.append(runs)
    sources = [values[value] for value in (*unit.reads, *(past for past, _ in unit.caches))]
    copies = [ir.node("Identity", [source]) for source in sources]
    for copy, value in zip(copies, made, strict=True):
        copy.name = copy.outputs[0].name = f"{value.name}.past"
    bodies = {"then_branch": (nodes, made), "else_branch": (copies, [copy.outputs[0] for copy in copies])}
    branches = [
        ir.AttrGraph(name, ir.Graph([], found, nodes=body, opset_imports=graph.opset_imports, name=f"{number}.{name}"))
        for name, (body, found) in bodies.items()
    ]
    guard = ir.Node("", "If", [runs], branches, num_outputs=len(made), name=f"run.{number}")
    for value, old in zip(guard.outputs, made, strict=True):
        value.type, value.shape = old.type, old.shape
    graph.append(guard)
    return dict(zip(wanted, guard.outputs, strict=True))


def _counts(node: ir.Node) -> bool:
    """True if a node depends on inputs that each unit has separately."""
    given = [value for value in node.inputs if value is not None]
    makers = [value.producer() for value in given]
    reads = any(value.name in PER_UNIT for value in given)
    return reads or any(_counts(maker) for maker in makers if maker is not None)


def _copy(node: ir.Node, values: Values, suffix: str = "") -> ir.Node:
    """A node over other values, and what it makes among them."""
    given = [None if value is None else values[value] for value in node.inputs]
    copy = ir.Node(
        node.domain,
        node.op_type,
        given,
        node.attributes.values(),
        num_outputs=len(node.outputs),
        name=f"{node.name}{suffix}",
    )
    for old, new in zip(node.outputs, copy.outputs, strict=True):
        new.name, new.type, new.shape = old.name and f"{old.name}{suffix}", old.type, old.shape
        values[old] = new
    return copy


def _like(value: ir.Value, suffix: str = "") -> ir.Value:
    """An input or initializer like this one."""
    return ir.Value(name=f"{value.name}{suffix}", shape=value.shape, type=value.type, const_value=value.const_value)
