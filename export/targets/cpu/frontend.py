"""Whisper's log-mel features as a graph: a host hands over samples and needs no signal processing of its own.

The same numbers as transformers' WhisperFeatureExtractor. Frames of 25 ms every 10 ms, Hann window, power spectrum, mel
filters (Slaney's scale and norm), log10, at most 8 below the loudest, (x + 4) / 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnxscript import OpBuilder, nn
from transformers import WhisperFeatureExtractor

from edge.bundle import BundleWriter
from edge.errors import ExportError
from edge.export.graph.operators import Lowering, Value, scalar
from edge.export.graph.step import FLOAT, add_output, new_graph
from edge.export.graph.weights import external, parameter
from edge.export.targets.cpu.files import write_graph
from edge.export.targets.cpu.lowering import CPU
from edge.manifest import Graph

FRONTEND = "graphs/frontend.onnx"
FRAME, HOP = 400, 160  # samples: 25 and 10 ms at 16 kHz
FLOOR = 1e-10  # the smallest power whose logarithm is taken
RANGE = 8.0  # powers of ten that are kept below the loudest


def build_frontend(config: Mapping[str, Any], writer: BundleWriter) -> Graph:
    """Write the graph: `pcm` [1, N] float32, 16 kHz, N a multiple of 160 -> `input_features` [1, M, N / 160] float32.

    config: transformers' configuration of the model, of which `num_mel_bins` is used.

    Raises:
        ExportError: the configuration has a number of mel filters that no Whisper has.
    """
    bins = config["num_mel_bins"]
    if not isinstance(bins, int) or not 1 <= bins <= FRAME // 2:
        raise ExportError(f"num_mel_bins is {bins!r}; features are made in 1 to {FRAME // 2} mel filters.")
    builder, op = new_graph("frontend", CPU)
    pcm = builder.input("pcm", FLOAT, [1, "N"])
    features = LogMel(bins, writer)(op, pcm)
    add_output(builder, features, "input_features", [1, bins, "F"])
    return write_graph(writer, "frontend", FRONTEND, builder.graph)


class LogMel(nn.Module):
    """Samples [1, N] to features [1, M, N / 160].

    The spectrum is one product with windowed cosines and sines: 30 seconds take about 10 ms on 2 threads, where
    onnxruntime's STFT takes 200 ms and is a hundred times less exact (its FFT is for powers of two).
    """

    def __init__(self, bins: int, writer: BundleWriter):
        super().__init__()
        filters = WhisperFeatureExtractor(feature_size=bins).mel_filters  # [201, M]
        # The sines of the first and the last frequency are zero.
        self.waves = _table(writer, "frontend.waves", waves()[:, nonzero()])
        self.filters = _table(writer, "frontend.mel_filters", np.concatenate([filters, filters])[nonzero()])

    def forward(self, op: Lowering, pcm: Value) -> Value:
        powers = op.MatMul(frames(op, pcm), self.waves)
        powers = op.Mul(powers, powers)  # of cosines and sines; the filters add them up
        mel = op.Transpose(op.MatMul(powers, self.filters), perm=[0, 2, 1])
        # In units of (log10 + 4) / 4, in which the range is 2 and the offset 1.
        unit = scalar(op, "unit", 1 / (4 * np.log(10)))
        logs = op.Mul(op.Log(op.Max(mel, scalar(op, "floor", FLOOR))), unit)
        minimum = op.Sub(op.ReduceMax(logs, keepdims=0), scalar(op, "range", RANGE / 4))
        return op.Add(op.Max(logs, minimum), scalar(op, "offset", 1.0))


def frames(op: OpBuilder, pcm: Value) -> Value:
    """Overlapping frames [1, N / 160, 400], the first centred at the first sample; beyond its ends the signal is
    mirrored. A frame is two and a half rows of the signal in rows of 160."""
    before, after = FRAME // 2, 2 * HOP - FRAME // 2  # what fills up the last row is never read
    padded = op.Pad(pcm, _ints(op, "pads", [0, before, 0, after]), mode="reflect")
    rows = op.Reshape(padded, [1, -1, HOP])
    whole = [op.Slice(rows, [i], [i - 2], [1]) for i in (0, 1)]
    half = op.Slice(rows, [2, 0], [np.iinfo(np.int64).max, FRAME - 2 * HOP], [1, 2])
    return op.Concat(*whole, half, axis=2)


def waves() -> NDArray[np.float64]:
    """Cosines, then sines, under the window: [400, 402], a column for each of the frequencies 0, 40, ... 8000 Hz."""
    at = np.arange(FRAME)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * at / FRAME)
    angle = 2 * np.pi / FRAME * np.outer(at, np.arange(FRAME // 2 + 1))
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=1) * window[:, None]


def nonzero() -> NDArray[np.bool_]:
    """Mask of the cosines and sines that are not zero everywhere: [402]."""
    sines = np.arange(FRAME // 2 + 1) % (FRAME // 2) > 0
    return np.concatenate([np.ones_like(sines), sines])


def _table(writer: BundleWriter, name: str, values: NDArray[np.float64]) -> nn.Parameter:
    stored = np.ascontiguousarray(values, dtype=np.float32)
    span = writer.add_tensor(name, stored)
    return parameter(external(name, span.offset, span.length, ir.DataType.FLOAT, stored.shape))


def _ints(op: OpBuilder, name: str, values: list[int]) -> Value:
    return op.initializer(ir.tensor(np.array(values, np.int64), name=name))
