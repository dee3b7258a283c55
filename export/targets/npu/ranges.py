"""The range of every activation of a float graph, over a calibration text, and weights in 4 bits for it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from edge.export.targets.kind import Sample
from edge.export.targets.npu.blocks import Blocks
from edge.export.targets.npu.graphs import DECODER, ENCODER, Shape, StaticModel
from edge.export.targets.npu.products import Products
from edge.export.targets.npu.qdq import CROSS, FLOAT, PAST, Range, activations, name_of
from edge.runtime.engine.graphs.fixed_mask import distances_of, mask_of, source_mask_of
from edge.runtime.providers import open_provider

EXACT = -1e4  # added to the scores of what must not be attended to while ranges are measured
MASKED, ROOM = -100.0, 25.0  # added in the target, at least; what is left over the largest difference of two scores
SIZE, CAPACITY = 32, 224  # of the graph that runs over the text: seven steps fill its cache

OF_STEPS, MASKS = {"mask"}, {"mask", "cross_mask"}  # inputs

Progress = Callable[[int, int, str], None]
Ranges = dict[str, Range]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Measured:
    """The ranges of a decoder's activations and of its encoder's, and what masks add to the scores of what must not be
    attended to: so much that no other score is that low, and no more, because it coarsens the others. blocks: a
    decoder's weights in 4 bits, by name."""

    decoder: Ranges
    encoder: Ranges
    masked: float
    blocks: Mapping[str, Blocks] = field(default_factory=dict)


def measure(
    model: StaticModel, samples: Sequence[Sample], folder: Path, progress: Progress, *, blocks: bool = False
) -> Measured:
    """The smallest and largest value of each activation of a decoder, and of the encoder before it, over `samples`.
    `folder`: for temporary files as large as the weights in float32. blocks: also round weights to 4 bits, for which
    all that products read is in files, too."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        masks = MASKS if model.features is None else OF_STEPS  # all of a sound is heard
        encoder = _Graph(model.build_encoder(), Path(temporary) / "encoder.onnx", masks) if model.cross else None
        size, capacity = min(SIZE, model.context), model.context if model.cross else min(CAPACITY, model.context)
        built = model.build(Shape(size, size, capacity))
        products = Products(built.graph, Path(temporary)) if blocks else None
        decoder = _Graph(built, Path(temporary) / "decoder.onnx", masks, products=products)
        for i, (source, tokens) in enumerate(samples):
            progress(i, len(samples), "measuring activations")
            cross: Arrays = {}
            if encoder is None:
                tokens = tokens[: min(capacity, len(tokens)) // size * size]
            elif source is not None:
                cross = _encoded(model, encoder, source)
            _steps(model, decoder, tokens, size, capacity, cross)
        measured = [decoder] if encoder is None else [decoder, encoder]
        masked = min(MASKED, -ROOM - max(graph.spread for graph in measured))
        lowest = 0.0 if model.biases is None else min(float(bias.min()) for bias in model.biases)
        of_decoder, *of_encoder = (graph.masked(masked, lowest) for graph in measured)
        ranges = of_encoder[0] if of_encoder else {}
        shared = {name: found for name, found in ranges.items() if name.startswith(CROSS)}
        found = {} if products is None else products.solve(progress)
        return Measured(of_decoder | shared, ranges, masked, found)


def _encoded(model: StaticModel, encoder: _Graph, source: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Run the encoder; return what a decoder is given of it."""
    given, cross = _source(model, source)
    for name, array in encoder.run(given).items():
        if name.startswith(CROSS):
            cross[name] = array.transpose(0, 2, 3, 1) if name.endswith(".key") else array.transpose(0, 2, 1, 3)
    return cross


def _source(model: StaticModel, source: NDArray[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs of an encoder for a text's tokens or a sound's features, and what a decoder is given besides."""
    if model.source_embedding is None:
        return {"features": source}, {"cross_mask": np.zeros((1, 1, 1, model.source), np.float32)}
    size, bias = model.source, None if model.biases is None else model.biases[1]
    rows = np.zeros((1, size, model.hidden), np.float32)
    rows[0, : len(source)] = model.source_embedding[source]
    given = {"rows": rows, "mask": source_mask_of(len(source), size, bias, EXACT)}
    given |= {name: table[None] for name, table in model.tables[ENCODER].items()}
    return given, {"cross_mask": source_mask_of(len(source), size, None, EXACT)[:, :, :1]}


def _steps(
    model: StaticModel, graph: _Graph, tokens: NDArray[np.int64], size: int, capacity: int, more: Arrays
) -> None:
    """Run tokens through a decoder, in steps of `size`. more: further inputs."""
    past = {
        value.name: np.zeros(value.shape, np.float32)
        for value in graph.session.inference.get_inputs()
        if value.name.startswith(PAST)
    }
    for start in range(0, len(tokens), size):
        part = tokens[start : start + size]
        rows = np.zeros((1, size, model.hidden), np.float32)
        rows[0, : len(part)] = model.embedding[part]
        mask = mask_of(model.groups, size, capacity, start, EXACT)
        if model.biases is not None:
            mask = mask + distances_of(model.biases[0], np.arange(start, start + size), np.arange(capacity))[None]
        positions = np.minimum(np.arange(start, start + size), capacity - 1)
        tables = {name: table[positions][None] for name, table in model.tables[DECODER].items()}
        logit_rows = np.minimum(np.arange(size, dtype=np.int32), len(part) - 1)
        made = graph.run({"rows": rows, "mask": mask, "logit_rows": logit_rows, **tables, **past, **more})
        for layer in range(len(model.heads)):
            key, value = made[f"new.{layer}.key"][:, : len(part)], made[f"new.{layer}.value"][:, : len(part)]
            past[f"past.{layer}.key"][..., start : start + len(part)] = key.transpose(0, 2, 3, 1)
            past[f"past.{layer}.value"][:, :, start : start + len(part)] = value.transpose(0, 2, 1, 3)


class _Graph:
    """A graph that says how large its activations are. Its model is written to `path`. masks: inputs that hide what
    must not be attended to. products: to be told what they read."""

    def __init__(
        self, model: ir.Model, path: Path, masks: set[str] = MASKS, *, products: Products | None = None
    ) -> None:
        self._products = products
        values = activations(model.graph)
        self._masks = [value for value in model.graph.inputs if value.name in masks]
        self._scores = {  # before and after a mask is added
            name_of(node.inputs[0]): name_of(node.outputs[0])  # type: ignore[arg-type]
            for node in model.graph
            if node.op_type == "Add" and node.inputs[1] in self._masks
        }
        self._names = list(map(name_of, values))
        _add_extremes(model.graph, values)
        ir.save(model, path, external_data=f"{path.stem}.bin")
        self.session = open_provider("cpu").open_model(path, str(path), path.parent)
        self._outputs = [value.name for value in self.session.inference.get_outputs()]
        self._lows, self._highs = np.full(len(values), np.inf), np.full(len(values), -np.inf)

    def run(self, given: Arrays) -> dict[str, NDArray[Any]]:
        """Run the graph and update the ranges; return the outputs by name."""
        made = dict(zip(self._outputs, self.session.run(dict(given)), strict=True))
        self._lows = np.minimum(self._lows, made["lows"])
        self._highs = np.maximum(self._highs, made["highs"])
        if self._products is not None:
            self._products.keep(made)
        return made

    @property
    def ranges(self) -> Ranges:
        """The ranges of the runs so far."""
        found = zip(self._names, self._lows, self._highs, strict=True)
        return {name: (float(low), float(high)) for name, low, high in found}

    @property
    def spread(self) -> float:
        """The largest difference between two scores of a layer."""
        ranges = self.ranges
        return max((ranges[name][1] - ranges[name][0] for name in self._scores), default=0.0)

    def masked(self, masked: float, bias: float) -> Ranges:
        """Return the ranges that the same runs would have if masks had added `masked` instead. bias: the smallest that
        is part of a mask."""
        ranges = self.ranges
        for name in map(name_of, self._masks):
            ranges[name] = masked + bias, ranges[name][1]
        for scores, sums in self._scores.items():
            ranges[sums] = ranges[scores][0] + masked + bias, ranges[sums][1]
        return ranges


def _add_extremes(graph: ir.Graph, values: list[ir.Value]) -> None:
    """Add the outputs `lows` and `highs`: the smallest and the largest of each of `values`."""
    one = ir.val("one", const_value=ir.Tensor(np.array([1]), name="one"))
    graph.register_initializer(one)
    for kind, name in (("ReduceMin", "lows"), ("ReduceMax", "highs")):
        found = []
        for value in values:
            least = _append(graph, kind, [value], f"{value.name}.{name}", keepdims=0)
            found.append(_append(graph, "Reshape", [least, one], f"{value.name}.{name}.flat"))
        joined = _append(graph, "Concat", found, name, axis=0)
        joined.type, joined.shape = ir.TensorType(FLOAT), ir.Shape([len(found)])
        graph.outputs.append(joined)


def _append(graph: ir.Graph, kind: str, inputs: list[ir.Value], name: str, **attributes: int) -> ir.Value:
    node = ir.Node("", kind, inputs, [ir.AttrInt64(key, value) for key, value in attributes.items()], name=name)
    node.outputs[0].name = name
    graph.append(node)
    return node.outputs[0]
