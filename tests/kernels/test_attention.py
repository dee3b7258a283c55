"""Attention of our kernels: what onnxruntime's operator gives, and the same bits whatever computes it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edge.runtime.providers import open_provider
from edge.runtime.providers.cpu import session_options
from edge.runtime.providers.kernels import DOMAIN, INT8_DOMAIN, VARIABLE, Kernels

ROWS = 300  # of the cache
FORMS = ("portable", "avx2", "avx_vnni", "avx512_vnni")


@dataclass(frozen=True)
class Shape:
    heads: int = 9
    kv_heads: int = 3
    dim: int = 64
    packed: bool = False
    window: int = -1
    int8: bool = False
    bias: int = 0  # heads of it
    batch: int = 1
    rotary: bool = True
    attributes: dict[str, Any] = field(default_factory=dict)


def model_of(shape: Shape, *, ours: bool) -> bytes:
    domain = (INT8_DOMAIN if shape.int8 else DOMAIN) if ours else "com.microsoft"
    cache = TensorProto.INT8 if shape.int8 else TensorProto.FLOAT
    names = ["query", "key", "value", "past.key", "past.value", "last", "total", "cos", "sin", "positions", "bias"]
    given = {
        "query": (TensorProto.FLOAT, 3),
        "key": (TensorProto.FLOAT, 3),
        "value": (TensorProto.FLOAT, 3),
        "past.key": (cache, 4),
        "past.value": (cache, 4),
        "last": (TensorProto.INT32, 1),
        "total": (TensorProto.INT32, 1),
        "positions": (TensorProto.INT64, 2),
        "bias": (TensorProto.FLOAT, 4),
    }
    absent = {"key", "value"} if shape.packed else set()
    absent |= set() if shape.bias else {"bias"}
    absent |= set() if shape.rotary else {"cos", "sin", "positions"}
    inputs = ["" if name in absent else name for name in names]
    attributes = {"num_heads": shape.heads, "kv_num_heads": shape.kv_heads, "do_rotary": int(shape.rotary)}
    if shape.window > 0:
        attributes["local_window_size"] = shape.window
    stored = []
    if shape.rotary:
        angles = np.outer(np.arange(ROWS), 10000.0 ** -(np.arange(shape.dim // 2) / (shape.dim // 2)))
        for name, table in (("cos", np.cos(angles)), ("sin", np.sin(angles))):
            stored.append(numpy_helper.from_array(table.astype(np.float32), name))
    if shape.int8:
        inputs += ["", "key.scale", "value.scale"]
        kinds = {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": 8}
        attributes |= kinds  # type: ignore[arg-type]
        random = np.random.default_rng(3)
        for name in ("key.scale", "value.scale"):
            scales = (random.random(shape.kv_heads * shape.dim) + 0.5).astype(np.float32) / 30
            stored.append(numpy_helper.from_array(scales, name))
    while not inputs[-1]:
        inputs.pop()
    outputs = ["out", "present.key", "present.value"]
    node = helper.make_node("GroupQueryAttention", inputs, outputs, domain=domain, **attributes)
    values = [
        helper.make_tensor_value_info(name, kind, [None] * rank)
        for name, (kind, rank) in given.items()
        if name in inputs
    ]
    made = [
        helper.make_tensor_value_info(name, kind, [None] * rank)
        for name, kind, rank in zip(outputs, (TensorProto.FLOAT, cache, cache), (3, 4, 4), strict=True)
    ]
    graph = helper.make_graph([node], "g", values, made, stored)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(domain, 1)]
    content: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return content


def session_of(shape: Shape, kernels: Kernels | None) -> ort.InferenceSession:
    open_provider("cpu")  # its threads
    options = session_options(None)
    if kernels is not None:
        options.register_custom_ops_library(str(kernels.path))
    return ort.InferenceSession(model_of(shape, ours=kernels is not None), options, providers=["CPUExecutionProvider"])


def given(shape: Shape, past: list[int], tokens: int) -> dict[str, NDArray[Any]]:
    """A step of `tokens` after `past` rows, of each sequence."""
    random = np.random.default_rng(7)
    batch, total = len(past), max(past) + tokens
    width = (shape.heads + (2 * shape.kv_heads if shape.packed else 0)) * shape.dim
    found: dict[str, NDArray[Any]] = {"query": random.standard_normal((batch, tokens, width), np.float32)}
    if not shape.packed:
        for name in ("key", "value"):
            found[name] = random.standard_normal((batch, tokens, shape.kv_heads * shape.dim), np.float32)
    for name in ("past.key", "past.value"):
        size = (batch, shape.kv_heads, ROWS, shape.dim)
        if shape.int8:
            found[name] = random.integers(-127, 128, size, np.int8)
        else:
            found[name] = random.standard_normal(size, np.float32)
    found["last"] = np.array([rows + tokens - 1 for rows in past], np.int32)
    found["total"] = np.array([total], np.int32)
    if shape.rotary:
        found["positions"] = np.array([[rows + i for i in range(tokens)] for rows in past], np.int64)
    if shape.bias:
        bias = random.standard_normal((1, shape.bias, tokens, total)).astype(np.float32)
        bias[:, :, :, : total // 3] = -np.inf
        found["bias"] = bias
    return found


def run(session: ort.InferenceSession, step: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """In place, as the runtime runs it: past and present are one buffer."""
    binding = session.io_binding()
    kept = []
    for name, array in step.items():
        if not name.startswith("past."):
            binding.bind_cpu_input(name, array)
    for part in ("key", "value"):
        value = ort.OrtValue.ortvalue_from_numpy(step[f"past.{part}"].copy())
        kept.append(value)
        binding.bind_ortvalue_input(f"past.{part}", value)
        binding.bind_ortvalue_output(f"present.{part}", value)
    binding.bind_output("out")
    session.run_with_iobinding(binding)
    return [binding.copy_outputs_to_cpu()[-1].copy(), *(value.numpy().copy() for value in kept)]


SHAPES = {
    "plain": Shape(),
    "packed": Shape(packed=True),
    "window": Shape(window=50),
    "tree": Shape(bias=1),
    "bias of each head": Shape(bias=9, rotary=False),
    "wide heads": Shape(heads=4, kv_heads=1, dim=256),
    "small heads": Shape(heads=4, kv_heads=2, dim=16),
    "a head of its own": Shape(heads=4, kv_heads=4, dim=80, rotary=False),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(("past", "tokens"), [(0, 1), (0, 37), (5, 1), (63, 2), (130, 1), (200, 5), (129, 100)])
def test_it_is_what_onnxruntime_computes(kernels: Kernels, name: str, past: int, tokens: int) -> None:
    shape = SHAPES[name]
    step = given(shape, [past], tokens)
    for mine, theirs in zip(run(session_of(shape, kernels), step), run(session_of(shape, None), step), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=3e-6, rtol=2e-5)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(("past", "tokens"), [(0, 1), (0, 37), (63, 2), (130, 1), (129, 100)])
def test_over_bytes_too(kernels: Kernels, name: str, past: int, tokens: int) -> None:
    shape = replace(SHAPES[name], int8=True)
    step = given(shape, [past], tokens)
    mine, theirs = run(session_of(shape, kernels), step), run(session_of(shape, None), step)
    np.testing.assert_allclose(mine[0], theirs[0], atol=2e-3)  # a new row may be rounded to the next byte
    for ours, other in zip(mine[1:], theirs[1:], strict=True):
        difference = np.abs(ours.astype(np.int32) - other)
        assert difference.max() <= 1
        assert (difference > 0).mean() < 1e-3


def test_each_sequence_of_a_batch_has_rows_of_its_own(kernels: Kernels) -> None:
    shape = Shape()
    step = given(shape, [3, 140, 70], 1)
    mine, theirs = run(session_of(shape, kernels), step), run(session_of(shape, None), step)
    np.testing.assert_allclose(mine[0], theirs[0], atol=3e-6, rtol=2e-5)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("int8", [False, True])
def test_instructions_make_no_difference(
    kernels: Kernels, name: str, int8: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = replace(SHAPES[name], int8=int8)
    for past, tokens in ((0, 37), (130, 3), (129, 100)):
        step, found = given(shape, [past], tokens), []
        for form in FORMS:
            monkeypatch.setenv(VARIABLE, form)
            if kernels.calls.edge_form() is not None:  # on this processor
                found.append(run(session_of(shape, kernels), step))
        for other in found[1:]:
            for mine, theirs in zip(other, found[0], strict=True):
                np.testing.assert_array_equal(mine.view(np.uint8), theirs.view(np.uint8))


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("window", [-1, 50])
def test_how_many_tokens_a_step_has_makes_no_difference(kernels: Kernels, int8: bool, window: int) -> None:
    """One step of 120 tokens, and the same in steps of other sizes."""
    shape = Shape(int8=int8, window=window)
    session, whole = session_of(shape, kernels), given(shape, [100], 120)
    wanted, *cache = run(session, whole)
    for sizes in ((1,), (2,), (7,), (16,), (17, 3), (50,)):
        past, at, i = [whole["past.key"], whole["past.value"]], 0, 0
        while at < 120:
            count = min(sizes[i % len(sizes)], 120 - at)
            step = {name: whole[name][:, at : at + count] for name in ("query", "key", "value", "positions")}
            step |= {"past.key": past[0], "past.value": past[1]}
            step["last"] = np.array([100 + at + count - 1], np.int32)
            step["total"] = np.array([100 + at + count], np.int32)
            made, *past = run(session, {name: np.ascontiguousarray(array) for name, array in step.items()})
            np.testing.assert_array_equal(made.view(np.uint32), wanted[:, at : at + count].copy().view(np.uint32))
            at, i = at + count, i + 1
        for mine, theirs in zip(past, cache, strict=True):
            np.testing.assert_array_equal(mine[:, :, :220], theirs[:, :, :220])
