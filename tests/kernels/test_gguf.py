"""Products of a GGUF file's own integers: the same bits whatever computes them, and what the file says."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from kernel_attention import FORMS
from kernel_products import PANEL, bits_of
from numpy.typing import NDArray

from edge.runtime.kernels.library import Kernels

TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
         "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4")  # fmt: skip
FLOATS = ("F16", "BF16")
HALVES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    "MXFP4": (),
}  # places of float16 in a block; others begin with them
COUNTS = (1, 2, 3, 4, 5, 8, 9, 13, 17)


@pytest.fixture(scope="module")
def calls(kernels: Kernels) -> Any:
    found, number, memory = kernels.calls, ctypes.c_int, ctypes.c_void_p
    found.edge_gguf_read.argtypes = (number, number, memory, memory)
    found.edge_gguf_product.argtypes = (number,) * 4 + (memory, memory, number, number, number, memory)
    return found


def blocks_of(name: str, inputs: int, columns: int) -> NDArray[np.uint8]:
    """A matrix [columns, bytes of a row] of any integers, with floats of the sizes that files have."""
    size, nbytes = quants.GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    random = np.random.default_rng(inputs + columns)
    if name in FLOATS:
        floats = random.standard_normal((columns, inputs)).astype(np.float32)
        return quants.quantize(floats, GGMLQuantizationType[name]).view(np.uint8)
    blocks = random.integers(0, 256, (columns, inputs // size, nbytes), np.uint8)
    if name == "MXFP4":  # exponents of about 0.01
        blocks[..., 0] = random.integers(114, 124, blocks.shape[:2])
    two = ("_1", "4_K", "5_K")
    for at in HALVES.get(name, (0, 2) if name.endswith(two) else (0,)):
        scales = (random.standard_normal(blocks.shape[:2]) * 0.01).astype(np.float16)
        blocks[..., at : at + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(columns, -1)


class Own:
    """A matrix of a file, packed."""

    def __init__(self, calls: Any, name: str, inputs: int, columns: int) -> None:
        self.calls, self.type, self.inputs, self.columns = calls, GGMLQuantizationType[name], inputs, columns
        self.raw = blocks_of(name, inputs, columns)
        self.packed = np.full(calls.edge_gguf_bytes(self.type, inputs, columns), 7, np.uint8)
        self.panels = -(-columns // PANEL)
        for panel in range(self.panels):
            assert self.pack(panel)

    def pack(self, panel: int) -> bool:
        """Pack the rows of one panel."""
        row, weights, heads = (ctypes.c_size_t() for _ in range(3))
        sizes = map(ctypes.byref, (row, weights, heads))
        assert self.calls.edge_gguf_panel(self.type, self.inputs, *sizes) == PANEL
        assert row.value == self.raw.shape[1]
        raw = self.raw[panel * PANEL : (panel + 1) * PANEL]
        own = self.packed[panel * weights.value :], self.packed[self.panels * weights.value + panel * heads.value :]
        places = [each.ctypes.data for each in (raw, *own)]
        return bool(self.calls.edge_gguf_pack(self.type, self.inputs, len(raw), *places))

    def floats(self) -> NDArray[np.float32]:
        out = np.empty((self.columns, self.inputs), np.float32)
        for row, to in zip(self.raw, out, strict=True):
            assert self.calls.edge_gguf_read(self.type, self.inputs, row.ctypes.data, to.ctypes.data)
        return out

    def dequantized(self) -> NDArray[np.float32]:
        """The same by the gguf package."""
        raw = self.raw.view(np.float16) if self.type == GGMLQuantizationType.F16 else self.raw
        return quants.dequantize(raw, self.type)

    def __call__(
        self, form: int, rows: NDArray[np.float32], part: tuple[int, int] | None = None
    ) -> NDArray[np.float32] | None:
        """The product by a form; None where this processor does not run it."""
        out, rows = np.zeros((len(rows), self.columns), np.float32), np.ascontiguousarray(rows)
        done = self.calls.edge_gguf_product(
            *(form, self.type, self.inputs, self.columns, self.packed.ctypes.data, rows.ctypes.data, len(rows)),
            *(part or (0, self.panels)),
            out.ctypes.data,
        )
        return out if done else None


def rows_of(inputs: int) -> NDArray[np.float32]:
    random = np.random.default_rng(1)
    rows = (random.standard_normal((17, inputs)) * np.exp(random.standard_normal((17, 1)))).astype(np.float32)
    rows[3] = 0
    rows[4, ::7] = 50
    rows[5] = np.sign(rows[5])
    return rows


@pytest.mark.parametrize("name", [*TYPES, *FLOATS])
def test_a_row_of_a_file_is_read_as_its_format_says(calls: Any, name: str) -> None:
    own = Own(calls, name, 512, 20)
    np.testing.assert_allclose(own.floats(), own.dequantized(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", TYPES)
def test_a_product_differs_from_floats_by_the_rounding_of_rows_alone(calls: Any, name: str) -> None:
    own, rows = Own(calls, name, 768, 40), rows_of(768)
    in_blocks = rows.reshape(len(rows), -1, 32)
    scale = np.abs(in_blocks).max(axis=2, keepdims=True) / 127
    rounded = np.where(scale > 0, np.rint(in_blocks / np.where(scale > 0, scale, 1)) * scale, 0).reshape(rows.shape)
    wanted = rounded.astype(np.float64) @ own.dequantized().T.astype(np.float64)
    made = own(0, rows)
    assert made is not None
    np.testing.assert_allclose(made, wanted, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("name", FLOATS)
def test_weights_that_are_floats_are_multiplied_with_rows_that_are_not_rounded(calls: Any, name: str) -> None:
    own, rows = Own(calls, name, 768, 40), rows_of(768)
    made = own(0, rows)
    assert made is not None
    weights = own.dequantized().T.astype(np.float64)
    bound = 768 * 2.0**-24 * (np.abs(rows) @ np.abs(weights))  # of sums in float32
    assert (np.abs(made - rows.astype(np.float64) @ weights) <= bound).all()


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_gives_none_that_is(calls: Any, name: str, wrong: float) -> None:
    own, rows = Own(calls, name, 96, 40), rows_of(96)[:9]
    wanted = own(0, rows)
    assert wanted is not None
    rows[4, 50] = wrong
    for form in range(len(FORMS)):
        if (made := own(form, rows)) is not None:
            assert not np.isfinite(made[4]).any(), FORMS[form]
            made[4] = wanted[4]
            np.testing.assert_array_equal(bits_of(made), bits_of(wanted), FORMS[form])


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize(
    ("name", "inputs", "columns"),
    [(name, *sizes) for name in (*TYPES, *FLOATS) for sizes in ((256, 64), (768, 40), (1536, 17))]
    + [(name, 50, 70) for name in FLOATS],
)
def test_rows_columns_and_instructions_make_no_difference(calls: Any, name: str, inputs: int, columns: int) -> None:
    own, rows = Own(calls, name, inputs, columns), rows_of(inputs)
    wanted = own(0, rows)
    assert wanted is not None
    for form in range(1, len(FORMS)):
        for count in COUNTS:
            made = own(form, rows[:count])
            if made is not None:
                np.testing.assert_array_equal(bits_of(made), bits_of(wanted[:count]), f"{FORMS[form]}, {count} rows")
        part = own(form, rows[:3], (1, 2))
        if part is not None:
            np.testing.assert_array_equal(bits_of(part[:, PANEL : 2 * PANEL]), bits_of(wanted[:3, PANEL : 2 * PANEL]))


@pytest.mark.parametrize("name", TYPES)
def test_the_largest_integers_do_not_saturate(calls: Any, name: str) -> None:
    own, rows = Own(calls, name, 512, 16), np.full((2, 512), 3.0, np.float32)
    rows[1, 1::2] = -3
    halves = own.raw.reshape(16, -1, quants.GGML_QUANT_SIZES[own.type][1])
    kept = {at: halves[..., at : at + 2].copy() for at in HALVES.get(name, (0, 2))}
    halves[:] = {"Q8_0": 127, "MXFP4": 0x77}.get(name, 255)
    for at, each in kept.items():
        if name not in ("Q4_0", "Q5_0", "Q8_0") or at == 0:
            halves[..., at : at + 2] = each
    assert own.pack(0)
    wanted = own(0, rows)
    for form in range(1, len(FORMS)):
        if (made := own(form, rows)) is not None:
            np.testing.assert_array_equal(made, wanted, FORMS[form])


@pytest.mark.parametrize("name", [name for name in TYPES if name != "MXFP4"])
def test_a_scale_that_is_no_finite_number_is_not_packed(calls: Any, name: str) -> None:
    own = Own(calls, name, 512, 20)
    nbytes = quants.GGML_QUANT_SIZES[own.type][1]
    for bad in (np.nan, np.inf, -np.inf):
        for at in HALVES.get(name, (0,)):
            own.raw[:] = blocks_of(name, 512, 20)
            own.raw[17, -nbytes + at : (-nbytes + at + 2) or None] = np.array([bad], np.float16).view(np.uint8)
            assert own.pack(0) and not own.pack(1)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_no_finite_number_is_not_packed(calls: Any, name: str, wrong: float) -> None:
    own = Own(calls, name, 50, 20)
    bad = np.array([wrong], np.float32)
    own.raw.reshape(20, 50, 2)[17, 33] = (bad.astype(np.float16) if name == "F16" else bad).view(np.uint8)[-2:]
    assert own.pack(0) and not own.pack(1)


def test_scales_of_mxfp4_are_those_of_the_gguf_package_or_refused(calls: Any) -> None:
    own = Own(calls, "MXFP4", 256 * 32, 16)
    blocks = own.raw.reshape(16, 256, 17)
    blocks[..., 0], blocks[..., 1:] = np.arange(256), np.arange(16) * 17  # every exponent with every place
    with np.errstate(over="ignore"):
        wanted = own.dequantized().reshape(16, 256, 32)
    finite = np.isfinite(wanted).all(axis=(0, 2))
    assert finite.tolist() == [True] * 253 + [False] * 3, "12 times the others is infinite"
    np.testing.assert_array_equal(own.floats().reshape(wanted.shape)[:, finite], wanted[:, finite])
    assert not own.pack(0)
    for exponent in (0, 1, 252, 253, 254, 255):
        blocks[..., 0] = 120
        blocks[5, 99, 0] = exponent
        assert own.pack(0) == finite[exponent]


def test_the_library_checks_itself(calls: Any) -> None:
    assert calls.edge_gguf_check() == 1


def test_matrices_that_are_none_are_refused(calls: Any) -> None:
    q4_k = GGMLQuantizationType.Q4_K
    assert calls.edge_gguf_bytes(q4_k, 256, 16) == 16 * 256 * 4 // 8 + 16 * (4 + 16)
    assert calls.edge_gguf_bytes(GGMLQuantizationType.MXFP4, 32, 16) == 16 * 16 + 16 * 2
    assert calls.edge_gguf_bytes(GGMLQuantizationType.BF16, 5, 17) == 32 * 5 * 2
    mxfp4, f16, f32 = (GGMLQuantizationType[name] for name in ("MXFP4", "F16", "F32"))
    of_q4_k = ((q4_k, 128, 16), (q4_k, 0, 16), (q4_k, 256, 0), (q4_k, -256, 16))
    for sizes in (*of_q4_k, (mxfp4, 48, 16), (f16, 0, 16), (f16, 16, 0), (f32, 256, 16), (-1, 256, 16)):
        assert calls.edge_gguf_bytes(*sizes) == 0
        assert not calls.edge_gguf_pack(*sizes, None, None, None)
