"""int8 products with one scale a row, as encoders have them: one operator of ours for the seven of the graph."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.runtime.kernels.library import Kernels
from edge.runtime.kernels.rows import take_rows
from edge.runtime.load import open_engine
from edge.runtime.onnx_proto import ModelProto
from edge.runtime.providers import cpu

ROUNDING = ("Abs", "ReduceMax", "Div", "QuantizeLinear", "MatMulIntegerToFloat")


def graph_of(bundle: Bundle) -> Path:
    return bundle.path(bundle.manifest.graph("encoder").path)


def encoded(bundle: Bundle) -> NDArray[np.float32]:
    encoder = open_engine(bundle).encoder
    assert encoder is not None
    cross = encoder.encode_text(np.arange(3, 20))
    return np.concatenate([np.asarray(part).reshape(-1) for layer in cross.buffers for part in layer])


def test_seven_operators_become_one(t5: Bundle) -> None:
    model = ModelProto.FromString(graph_of(t5).read_bytes())
    before = Counter(node.op_type for node in model.graph.node)
    take_rows(model.graph)
    after = Counter(node.op_type for node in model.graph.node)
    assert before["MatMulIntegerToFloat"] == after["MatMulNBits"] == 10
    assert before["Mul"] - after["Mul"] == 10
    assert not any(after[name] for name in ROUNDING)


@pytest.mark.parametrize("harm", ["step", "zero", "other rows"])
def test_others_stay_as_they_are(t5: Bundle, harm: str) -> None:
    model = ModelProto.FromString(graph_of(t5).read_bytes())
    for tensor in model.graph.initializer:
        if harm == "step" and tensor.name.endswith(".step"):
            tensor.raw_data = np.float32(1 / 63).tobytes()
        if harm == "zero" and tensor.name.endswith(".zero"):
            tensor.raw_data = b"\x00"
    for node in model.graph.node:
        if harm == "other rows" and node.op_type == "Abs":
            node.input[0] = "something.else"
    before = model.SerializeToString()
    take_rows(model.graph)
    assert model.SerializeToString() == before


def test_they_compute_the_same(t5: Bundle, kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = encoded(t5)
    monkeypatch.setattr(cpu, "find_kernels", lambda: None)
    theirs = encoded(t5)
    assert (ours != theirs).any(), "the kernels are others"
    np.testing.assert_allclose(ours, theirs, atol=0.01 * np.abs(theirs).max())  # a value may be rounded to the next
