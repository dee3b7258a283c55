"""Products of our kernels: the same bits whatever computes them, and what onnxruntime's operator gives."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_attention import FORMS
from kernel_products import PANEL, Product, bits_of
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from quantized_matrices import Matrix, matrix_of

from edge.runtime.kernels.library import Kernels
from edge.runtime.providers import open_provider

SHAPES = [(576, 64, 32), (576, 96, 64), (1536, 40, 128), (2048, 128, 32), (200, 24, 64), (300, 16, 256)]
COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17, 37)


def rows_of(inputs: int) -> NDArray[np.float32]:
    """Of many sizes; one of zeros, one with outliers, and one that is rounded to -127 and 127 alone."""
    random = np.random.default_rng(1)
    rows = (random.standard_normal((37, inputs)) * np.exp(random.standard_normal((37, 1)))).astype(np.float32)
    rows[3] = 0
    rows[4, ::7] = 50
    rows[5] = np.sign(rows[5])
    return rows


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_columns_and_instructions_make_no_difference(
    kernels: Kernels, shape: tuple[int, int, int], bits: int, zeros: bool, half: bool
) -> None:
    product, rows = Product(kernels, matrix_of(*shape, bits, zeros=zeros, half=half), half=half), rows_of(shape[0])
    wanted = product(0, rows)
    assert wanted is not None
    for form in range(1, len(FORMS)):
        for count in COUNTS:
            made = product(form, rows[:count])
            if made is not None:
                np.testing.assert_array_equal(bits_of(made), bits_of(wanted[:count]), f"{FORMS[form]}, {count} rows")
        part = product(form, rows[:3], (1, 2))
        if part is not None:
            np.testing.assert_array_equal(bits_of(part[:, PANEL : 2 * PANEL]), bits_of(wanted[:3, PANEL : 2 * PANEL]))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[0] % shape[2] == 0])
def test_it_is_what_onnxruntime_computes(kernels: Kernels, shape: tuple[int, int, int], bits: int, zeros: bool) -> None:
    """Which rounds activations to 8 bits in the same blocks, and adds blocks in another order."""
    matrix, rows = matrix_of(*shape, bits, zeros=zeros), rows_of(shape[0])
    theirs, ours = onnxruntimes(matrix, rows), Product(kernels, matrix)(0, rows)
    if bits == 2:  # which onnxruntime computes with float32 activations on some processors
        assert ours is not None
        assert np.abs(ours - theirs).max() < 0.02 * np.abs(theirs).max()
    else:
        np.testing.assert_allclose(ours, theirs, atol=2e-6 * np.abs(theirs).max(), rtol=2e-5)


def onnxruntimes(matrix: Matrix, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    columns, inputs = matrix.values.shape
    constants = {"b": matrix.stored(), "scales": matrix.scales.reshape(-1)}
    points = matrix.points()
    if points is not None:
        constants["zeros"] = points.reshape(-1)
    node = helper.make_node(
        "MatMulNBits", ["a", *constants], ["y"], domain="com.microsoft", K=inputs, N=columns, bits=matrix.bits,
        block_size=matrix.block, accuracy_level=4,
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
