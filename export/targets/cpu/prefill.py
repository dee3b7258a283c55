"""The int8 prefill graph: the same decoder over the same cache, its layers in int8 on a rotated residual stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnxscript import nn

from edge.bundle import BundleWriter
from edge.export.facts.checkpoint import Checkpoint
from edge.export.facts.family import Family
from edge.export.facts.tensors import Weight
from edge.export.graph.blocks import Stream
from edge.export.graph.operators import Lowering, Value
from edge.export.graph.stacks import Decoder
from edge.export.graph.step import step_graph
from edge.export.graph.weights import PrefillWeights, Weights
from edge.export.quantize.prefill import rotation
from edge.export.targets.cpu.files import write_graph
from edge.export.targets.cpu.lowering import CPU
from edge.manifest import PREFILL_VERSION, Graph, KVLayout, PrefillGraph

PATH = "graphs/prefill.onnx"


class Rotated(nn.Module):
    """The embedding's rows, turned as the layers' weights are."""

    def __init__(self, start: nn.Module, turn: nn.Parameter):
        super().__init__()
        self.start = start
        self.turn = turn

    def forward(self, op: Lowering, input_ids: Value, positions: Value) -> Value:
        return op.MatMul(self.start(op, input_ids, positions), self.turn)


class TurnedBack(nn.Module):
    """The final norm, of the few rows that the head reads, before which they are turned back."""

    def __init__(self, norm: nn.Module, turn: nn.Parameter):
        super().__init__()
        self.norm = norm
        self.turn = turn

    def forward(self, op: Lowering, stream: Stream) -> tuple[Value, Value]:
        assert stream.added is not None
        x = op.matmul(op.Add(stream.x, stream.added), self.turn, transposed=True)
        normed, unturned = self.norm(op, Stream(x))
        return normed, unturned


def build_prefill(
    checkpoint: Checkpoint,
    family: Family,
    config: Any,
    weights: Mapping[str, Weight],
    decode: Weights,
    writer: BundleWriter,
    kv: KVLayout,
    max_context: int,
) -> tuple[Graph, PrefillGraph]:
    """Write the int8 prefill graph's tensors and graph into the bundle, next to those of the decode graph.

    weights: as `edge.export.quantize.prefill` makes them. decode: what the decode graph has stored.
    """
    store = PrefillWeights(checkpoint, weights, writer, decode)
    decoder: Decoder = family.build(config, store, max_context)
    values = rotation(config.hidden_size)
    turn = [store.table("prefill.rotation", values) for _ in range(2)]  # a parameter for each place
    assert decoder.norm is not None
    decoder.start = Rotated(decoder.start, turn[0])
    decoder.norm = TurnedBack(decoder.norm, turn[1])
    graph = step_graph(decoder, kv, config.vocab_size, lower=CPU).graph
    return write_graph(writer, "prefill", PATH, graph), PrefillGraph("int8", PREFILL_VERSION, store.groups())
