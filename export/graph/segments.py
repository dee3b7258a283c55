"""Segments: the decoder's step graph, cut into files that run one after another, so that some can be left out.

The first segment is the embedding and the first layer, the last one the last layer, the final norm and the head: no
policy leaves these out. Between them stand units of a few layers each, or
halves of layers. A segment has the nodes of the whole graph under the names that they have there, so that neighbours
can be put together again, and points at the same bytes of `weights.bin`.
"""

from __future__ import annotations

import onnx_ir as ir

from edge.bundle import BundleWriter
from edge.errors import ExportError
from edge.export.graph.step import DECODER, cut_names, write_model
from edge.manifest import Manifest, Segment

RESULTS = ("logits", "tokens")  # what the last segment says
Cut = tuple[int, str]  # behind which layer's attention or feed_forward


def write_segments(writer: BundleWriter, manifest: Manifest, unit: int | str) -> list[Segment]:
    """Write the segments of the decoder's graph, which was written before.

    unit: layers of each segment between the first and the last, or "ffn" for half-layers.

    Raises:
        ExportError: there are too few layers to leave any out.
    """
    layers = manifest.dims.num_layers
    if layers < 3:
        raise ExportError(
            f"{manifest.name} has {layers} decoder layers, of which the first and the last always run, so there is "
            "nothing to skip; leave out --segments."
        )
    graph = ir.load(writer.staging / DECODER).graph
    segments: list[Segment] = []
    before: Cut | None = None
    for i, (part, own) in enumerate(_spans(layers, unit)):
        half = "attention" if part == "attention" else "feed_forward"
        behind: Cut | None = None if part == "end" else (own[-1], half)
        segment = Segment(f"graphs/segments/{i:03}.onnx", part, own)
        between = _between(graph, before, behind, [] if part == "feed_forward" else own)
        cuts = [*(cut_names(*before) if before else ()), *(cut_names(*behind) if behind else ())]
        for value in (*between.inputs, *between.outputs):
            if value.name in cuts:  # onnxruntime leaves out some optimizations where it does not know a value's rank
                value.shape = ir.Shape([1, "S", manifest.dims.hidden_size])
        write_model(writer, segment.path, between)
        segments.append(segment)
        before = behind
    return segments


def _spans(layers: int, unit: int | str) -> list[tuple[str, list[int]]]:
    """The part and the layers of each segment."""
    middle = range(1, layers - 1)
    if isinstance(unit, int):
        spans = [("layers", list(middle[at : at + unit])) for at in range(0, len(middle), unit)]
    else:
        spans = [(part, [i]) for i in middle for part in ("attention", "feed_forward")]
    return [("start", [0]), *spans, ("end", [layers - 1])]


def _between(graph: ir.Graph, before: Cut | None, behind: Cut | None, layers: list[int]) -> ir.Graph:
    """The part of the graph between two cuts, from its start or to its end, that fills the caches of `layers`."""
    made = {output.name: output for node in graph for output in node.outputs}
    given = [made[name] for name in cut_names(*before) if name in made] if before else []
    taken = [made[name] for name in (cut_names(*behind) if behind else RESULTS) if name in made]
    caches = [made[f"present.{i}.{part}"] for i in layers for part in ("key", "value")]
    part = ir.convenience.extract(graph, [*given, *graph.inputs], [*taken, *caches])
    for value in [value for value in part.inputs if not value.uses()]:
        part.inputs.remove(value)
    return part
