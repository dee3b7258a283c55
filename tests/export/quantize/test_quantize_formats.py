"""Weight formats that need no calibration: floats, int8, and a GGUF's own precision."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import ROOT

from edge.errors import ExportError, InputError
from edge.export.facts.tensors import FloatTensor, Format, QTensor
from edge.export.quantize import METHODS, methods_with, quantize, read_calibration
from edge.export.quantize.method import Options
from edge.export.quantize.rtn import round_to_nearest

Q, K, V = (f"model.layers.0.self_attn.{p}_proj.weight" for p in "qkv")
OUT, DOWN = "model.layers.0.self_attn.o_proj.weight", "model.layers.0.mlp.down_proj.weight"
EMBEDDING = "model.embed_tokens.weight"


class Stored:
    """A checkpoint of named tensors, each with the type that a GGUF would store it in."""

    licence = None
    config: dict[str, Any] = {}  # noqa: RUF012
    tokenizer: Any = None

    def __init__(self, types: dict[str, str], kind: str = "gguf", columns: int = 96) -> None:
        self.name, self.kind, self._types = "model.gguf", kind, types
        rng = np.random.default_rng(0)
        self._blocks = {n: _blocks(rng, t, columns) for n, t in types.items() if t in ("Q4_0", "Q8_0")}
        self._floats = {n: rng.standard_normal((8, columns)).astype(np.float16).astype(np.float32) for n in types}

    def names(self) -> list[str]:
        return [*self._types, "model.norm.weight"]

    def shape(self, name: str) -> tuple[int, ...]:
        return (4,) if name == "model.norm.weight" else self.read(name).shape

    def read(self, name: str, rows: slice | None = None) -> np.ndarray:
        values = self._blocks[name].dequantize() if name in self._blocks else self._floats[name]
        return values[rows or slice(None)]

    def form(self, name: str) -> Format | None:
        return {"Q4_0": Format(4, 32), "Q8_0": Format(8, 32)}.get(self._types[name])

    def blocks(self, name: str) -> QTensor | None:
        return self._blocks.get(name)

    def stored_type(self, name: str) -> str:
        return self._types[name]


def _blocks(rng: np.random.Generator, stored: str, columns: int) -> QTensor:
    bits = 4 if stored == "Q4_0" else 8
    scales = rng.uniform(-0.1, 0.1, (8, columns // 32)).astype(np.float16).astype(np.float32)
    q = rng.integers(0, 2**bits, (8, columns)).astype(np.uint8)
    return QTensor(bits, 32, q, scales, None, "gguf")


def test_float_formats_hold_every_matrix_and_no_norm() -> None:
    checkpoint = Stored({EMBEDDING: "F32", OUT: "F32"}, kind="directory")
    for weights, dtype in (("fp32", np.float32), ("fp16", np.float16)):
        result = quantize(checkpoint, weights)
        assert list(result) == [EMBEDDING, OUT]
        for name, weight in result.items():
            assert isinstance(weight, FloatTensor)
            assert weight.values.dtype == dtype
            assert np.array_equal(weight.values.astype(np.float32), checkpoint.read(name))


def test_fp16_refuses_what_float16_cannot_hold() -> None:
    checkpoint = Stored({OUT: "F32"}, kind="directory")
    checkpoint._floats[OUT][0, 0] = 1e5
    with pytest.raises(ExportError, match=r"o_proj.weight holds 1e\+05"):
        quantize(checkpoint, "fp16")[OUT]


@pytest.mark.parametrize("columns", [64, 96, 100])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_rounding_errs_by_half_a_step_at_most(bits: int, symmetric: bool, columns: int) -> None:
    w = np.random.default_rng(1).standard_normal((16, columns)).astype(np.float32)
    t = round_to_nearest(w, bits, 64, symmetric=symmetric)
    assert t.q.shape == w.shape
    assert t.scales.shape == (16, -(-columns // 64))
    assert t.q.max() < 2**bits
    step = np.repeat(np.abs(t.scales), 64, axis=1)[:, :columns]
    off = np.abs(t.dequantize() - w)
    # At the ends of a range up to half a step more: a rounded zero point shifts it, and a sign-aware 4-bit range is
    # shorter on one side. Scales rounded to float16 move 8-bit extremes by a few hundredths of a step.
    assert (off <= step * (0.54 if bits == 8 and symmetric else 1.05)).all()
    assert (off <= step * 0.54).mean() > 0.95


def test_a_block_of_zeros_stays_zero() -> None:
    w = np.zeros((2, 64), np.float32)
    for bits in (4, 8):
        for symmetric in (True, False):
            assert (round_to_nearest(w, bits, 32, symmetric=symmetric).dequantize() == 0).all()


def test_the_smallest_weights_keep_their_size() -> None:
    w = np.full((2, 64), 1e-7, np.float32)
    assert np.allclose(round_to_nearest(w, 8, 32).dequantize(), w, rtol=1e-2)


def test_int8_takes_a_files_own_8_bit_blocks() -> None:
    checkpoint = Stored({EMBEDDING: "Q8_0", OUT: "Q4_1"})
    result = quantize(checkpoint, "int8")
    own, anew = result[EMBEDDING], result[OUT]
    assert isinstance(own, QTensor) and isinstance(anew, QTensor)
    assert (own.block_size, anew.block_size) == (32, 64)
    assert np.array_equal(own.dequantize(), checkpoint.read(EMBEDDING))
    wide = quantize(checkpoint, "int8", Options(block_size=128))[EMBEDDING]
    assert isinstance(wide, QTensor) and wide.block_size == 128


def test_keep_keeps_q4_0_q8_0_and_floats_exactly() -> None:
    checkpoint = Stored({EMBEDDING: "Q8_0", OUT: "Q4_0", DOWN: "F16", "lm_head.weight": "F32"})
    result = quantize(checkpoint, "keep")
    for name, weight in result.items():
        values = weight.values if isinstance(weight, FloatTensor) else weight.dequantize()
        assert np.array_equal(values.astype(np.float32), checkpoint.read(name)), name
    stored = result[OUT]
    assert isinstance(stored, QTensor) and stored.bits == 4
    half = result[DOWN]
    assert isinstance(half, FloatTensor) and half.values.dtype == np.float16


def test_keep_puts_other_types_in_8_bit_blocks() -> None:
    checkpoint = Stored({OUT: "Q4_1", DOWN: "Q6_K"})
    for name, weight in quantize(checkpoint, "keep").items():
        assert isinstance(weight, QTensor) and weight.bits == 8
        assert np.abs(weight.dequantize() - checkpoint.read(name)).max() < 0.02


@pytest.mark.parametrize("types", [("Q4_0", "Q4_0", "Q8_0"), ("Q4_0", "Q4_0", "Q6_K"), ("Q8_0", "Q4_1", "Q4_1")])
def test_keep_gives_query_key_and_value_one_format_and_loses_nothing(types: tuple[str, str, str]) -> None:
    checkpoint = Stored(dict(zip((Q, K, V), types, strict=True)))
    result = quantize(checkpoint, "keep")
    weights = [result[n] for n in (Q, K, V)]
    assert all(isinstance(w, QTensor) for w in weights)
    assert len({(w.bits, w.block_size, w.zero_points is None) for w in weights if isinstance(w, QTensor)}) == 1
    for name, stored in zip((Q, K, V), types, strict=True):
        if stored in ("Q4_0", "Q8_0"):
            weight = result[name]
            assert isinstance(weight, QTensor)
            assert np.array_equal(weight.dequantize(), checkpoint.read(name))


def test_keep_needs_a_gguf() -> None:
    with pytest.raises(ExportError, match="is for GGUF files"):
        quantize(Stored({OUT: "BF16"}, kind="directory"), "keep")


def test_keep_takes_no_block_size() -> None:
    with pytest.raises(ExportError, match="--block-size 64"):
        quantize(Stored({OUT: "Q4_0"}), "keep", Options(block_size=64))


@pytest.mark.parametrize("weights", ["fp32", "fp16"])
def test_floats_take_no_block_size(weights: str) -> None:
    with pytest.raises(ExportError, match=f"--block-size 32 does not apply to {weights} weights"):
        quantize(Stored({OUT: "F32"}), weights, Options(block_size=32))


@pytest.mark.parametrize("size", [0, 8, 48, -32, 33])
def test_a_block_size_is_a_power_of_two_from_16(size: int) -> None:
    with pytest.raises(ExportError, match=f"--block-size {size} must be a power of two"):
        quantize(Stored({OUT: "F32"}), "int8", Options(block_size=size))


def test_an_unknown_format_is_named_with_the_one_that_is_like_it() -> None:
    with pytest.raises(InputError, match=r"no kind of weights 'int5'; did you mean int8"):
        quantize(Stored({OUT: "F32"}), "int5")


def test_a_calibration_file_must_be_there_and_hold_text(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("  \n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00text")
    for name, message in (("no.txt", "cannot be read"), ("empty.txt", "is empty"), ("binary.txt", "not UTF-8")):
        with pytest.raises(ExportError, match=message):
            read_calibration(tmp_path / name)


def test_the_guide_has_a_row_for_every_method_and_says_what_it_may_lose() -> None:
    guide = (ROOT / "docs/guide/export.md").read_text(encoding="utf-8")
    tables = [guide.partition(f"\n| {first} |")[2].partition("\n\n")[0] for first in ("`--weights`", "weights")]
    stored, lost = ([row.split("|")[1:] for row in table.splitlines()[2:]] for table in tables)
    assert {name for kinds, *_ in stored for name in re.findall("`(.+?)`", kinds)} == set(METHODS)
    maximum = {
        name: float(re.split("[ ,]", most.strip())[0])
        for kinds, most, _ in lost
        for name in re.findall("`(.+?)`", kinds)
    }
    assert maximum == {name: method.traits["max_kl"] for name, method in METHODS.items()}
    halves = next(row for row in guide.splitlines() if row.startswith("| `--encoder-weights`"))
    for part, said in zip(("encoder", "decoder"), halves.split(": ", 1)[1].split("; and ", 1), strict=True):
        assert set(re.findall("`(.+?)`", said.partition(".")[0])) == set(methods_with(part))
