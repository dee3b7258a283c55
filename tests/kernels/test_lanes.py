"""Products of 4-bit weights: the same bits whatever computes them, and what onnxruntime's operator gives."""

from __future__ import annotations

from typing import Any

import lanes
import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edge.runtime.providers import open_provider

SHAPES = [(576, 64, 32), (576, 96, 64), (1536, 64, 128), (2048, 128, 32)]  # inputs, columns, block
COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17, 37)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> lanes.Library:
    if lanes.compiler() is None:
        pytest.skip("there is no g++ here, or no x86 processor")
    return lanes.Library(lanes.build(tmp_path_factory.mktemp("kernels")))


def rows_of(inputs: int) -> NDArray[np.float32]:
    """Of many sizes; one of zeros, one with outliers, and one that is rounded to -127 and 127 alone."""
    random = np.random.default_rng(1)
    rows = (random.standard_normal((37, inputs)) * np.exp(random.standard_normal((37, 1)))).astype(np.float32)
    rows[3] = 0
    rows[4, ::7] = 50
    rows[5] = np.sign(rows[5])
    return rows


def parts_of(inputs: int, columns: int, block: int, *, zeros: bool) -> tuple[Any, ...]:
    random = np.random.default_rng(0)
    values = random.integers(0, 16, (columns, inputs), np.uint8)
    values[0], values[1] = 0, 15
    scales = ((random.random((columns, inputs // block)) + 0.5) * 0.01).astype(np.float32)
    points = random.integers(0, 16, scales.shape, np.uint8) if zeros else None
    return values, scales, points, block


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_threads_and_instructions_make_no_difference(
    library: lanes.Library, shape: tuple[int, int, int], zeros: bool
) -> None:
    matrix, rows = lanes.Matrix(library, *parts_of(*shape, zeros=zeros)), rows_of(shape[0])
    wanted = library.run("portable", [matrix])(rows).copy()
    for form in lanes.forms()[1:]:
        for threads in (1, 2):
            run = library.run(form, [matrix], threads)
            for count in COUNTS:
                made = run(np.ascontiguousarray(rows[:count]))
                np.testing.assert_array_equal(made.view(np.uint32), wanted[:count].view(np.uint32), f"{form}, {count}")


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_what_onnxruntime_computes(library: lanes.Library, shape: tuple[int, int, int], zeros: bool) -> None:
    """Which rounds activations to 8 bits in the same blocks, and adds blocks in another order."""
    inputs, _, block = shape
    values, scales, points, _ = parts_of(*shape, zeros=zeros)
    matrix, rows = lanes.Matrix(library, values, scales, points, block), rows_of(inputs)
    ours = library.run(lanes.forms()[-1], [matrix])(rows)
    theirs = onnxruntimes(values, scales, points, block, rows)
    np.testing.assert_allclose(ours, theirs, atol=2e-6 * np.abs(theirs).max(), rtol=2e-5)


def onnxruntimes(
    values: NDArray[np.uint8],
    scales: NDArray[np.float32],
    points: NDArray[np.uint8] | None,
    block: int,
    rows: NDArray[np.float32],
) -> NDArray[np.float32]:
    columns, inputs = values.shape
    packed = (values[:, 0::2] | values[:, 1::2] << 4).reshape(columns, inputs // block, block // 2)
    constants = {"b": packed, "scales": scales.reshape(-1)}
    if points is not None:
        even = np.pad(points, ((0, 0), (0, points.shape[1] % 2)))
        constants["zeros"] = (even[:, 0::2] | even[:, 1::2] << 4).reshape(-1)
    node = helper.make_node(
        "MatMulNBits", ["a", *constants], ["y"], domain="com.microsoft", K=inputs, N=columns, bits=4,
        block_size=block, accuracy_level=4,
    )  # fmt: skip
    given, made = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["M", size])
        for name, size in (("a", inputs), ("y", columns))
    )
    stored = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", [given], [made], stored)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    (result,) = open_provider("cpu").open_model(model.SerializeToString(), "a product").run({"a": rows})
    found: NDArray[np.float32] = result
    return found
