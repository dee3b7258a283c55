"""What products of our kernels take along: the norm of a sum before them, and the gate after them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from quantized_matrices import matrix_of

from edge.runtime.kernels.library import DOMAIN, VARIABLE, Kernels, Layout
from edge.runtime.providers import open_provider
from edge.runtime.providers.cpu import session_options

INPUTS, COLUMNS, BLOCK = 208, 96, 32  # the last block is not full
HALF = COLUMNS // 2  # a gate, or what it lets through
EPSILON = 1e-5
Run = Callable[..., list[NDArray[Any]]]


@pytest.fixture
def run(kernels: Kernels) -> Run:
    """A product with these attributes, of these inputs by their numbers, of which 7 is part of the graph."""
    matrix = matrix_of(INPUTS, COLUMNS, BLOCK, 4, zeros=True)
    layout = Layout(4, INPUTS, COLUMNS, BLOCK, half=False, zero_points=True)
    packed = np.empty(kernels.packed_bytes(layout), np.uint8)
    kernels.pack(layout, matrix.stored(), matrix.scales, matrix.points(), packed)

    def made(given: dict[int, NDArray[np.float32]], outputs: int = 1, **attributes: Any) -> list[NDArray[Any]]:
        open_provider("cpu")  # its threads
        inputs = ["" if i not in given else f"x{i}" for i in range(8)]
        while not inputs[-1]:
            inputs.pop()
        names = [f"y{i}" for i in range(outputs)]
        with kernels.lend(packed) as lent:
            node = helper.make_node(
                "MatMulNBits", inputs, names, domain=DOMAIN, K=INPUTS, N=COLUMNS, bits=4, block_size=BLOCK,
                accuracy_level=4, half=0, zero_points=1, lent=lent, **attributes,
            )  # fmt: skip
            values = [
                helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, [None] * x.ndim)
                for i, x in given.items()
                if i != 7
            ]
            results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 3) for name in names]
            stored = [numpy_helper.from_array(given[7], "x7")] if 7 in given else []
            graph = helper.make_graph([node], "g", values, results, stored)
            opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
            model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
            options = session_options(None)
            options.register_custom_ops_library(str(kernels.path))
            session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
            found: list[NDArray[Any]] = session.run(None, {f"x{i}": x for i, x in given.items() if i != 7})
        return found

    return made


def rows(count: int, width: int, seed: int = 0) -> NDArray[np.float32]:
    random = np.random.default_rng(seed)
    return (random.standard_normal((1, count, width)) * 3).astype(np.float32)


def silu(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return (x / (1 + np.exp(-x.astype(np.float64)))).astype(np.float32)


def gelu(x: NDArray[np.float32]) -> NDArray[np.float32]:
    wide = x.astype(np.float64)
    return (0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))).astype(np.float32)


@pytest.mark.parametrize(("number", "activation"), [(1, silu), (2, gelu)])
@pytest.mark.parametrize("count", [1, 5, 33])
def test_a_gate(run: Run, number: int, activation: Callable[..., NDArray[np.float32]], count: int) -> None:
    x = rows(count, INPUTS) * 20  # gates near 0 and far from it
    (made,) = run({0: x}, gate=number)
    (both,) = run({0: x})
    assert np.abs(both).max() > 30
    np.testing.assert_allclose(made, activation(both[..., :HALF]) * both[..., HALF:], rtol=5e-6, atol=1e-4)


@pytest.mark.parametrize("count", [1, 5, 33])
def test_a_norm_of_a_sum(run: Run, count: int) -> None:
    x, more = rows(count, INPUTS), rows(count, INPUTS, 1)
    weight = rows(1, INPUTS, 2)[0, 0]
    made, total = run({0: x, 6: more, 7: weight}, 2, norm=1, epsilon=EPSILON)
    np.testing.assert_array_equal(total, x + more)
    squares = np.mean(total.astype(np.float64) ** 2, axis=-1, keepdims=True)
    (wanted,) = run({0: (total / np.sqrt(squares + EPSILON) * weight).astype(np.float32)})
    np.testing.assert_allclose(made, wanted, atol=2e-3 * np.abs(wanted).max())


def test_instructions_and_other_rows_make_no_difference(
    kernels: Kernels, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight = rows(33, INPUTS), rows(1, INPUTS, 2)[0, 0]
    found: list[list[NDArray[Any]]] = []
    for form in ("portable", "avx2", "avx_vnni", "avx512_vnni"):
        monkeypatch.setenv(VARIABLE, form)
        if kernels.calls.edge_form() is None:
            continue  # not on this processor
        for count in (33, 7, 1):
            part = np.ascontiguousarray(x[:, :count])
            norm = run({0: part, 6: part, 7: weight}, norm=1, epsilon=EPSILON)
            found.append([*norm, *run({0: part}, gate=1), *run({0: part}, gate=2)])
    for other in found[1:]:
        for mine, wanted in zip(other, found[0], strict=True):
            np.testing.assert_array_equal(mine.view(np.uint32), wanted[:, : mine.shape[1]].copy().view(np.uint32))
