"""What onnxruntime's operators refuse, ours refuse: inputs of other sizes, types and values, one changed at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from edge.runtime.kernels.library import DOMAIN, INT8_DOMAIN, Kernels, Layout
from edge.runtime.providers import open_provider
from edge.runtime.providers.cpu import session_options

THEIRS = "com.microsoft"
CHANGES = 250  # of each node
Feeds = dict[str, NDArray[Any]]
Session = ort.InferenceSession


def session_of(
    op: str, domain: str, inputs: Feeds, outputs: dict[str, int], kernels: Kernels | None, **attributes: Any
) -> Session:
    """One node, whose inputs may have any sizes. outputs: the types of those."""
    names = [name if array is not None else "" for name, array in inputs.items()]
    node = helper.make_node(op, names, list(outputs), domain=domain, **attributes)
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), None)
        for name, array in inputs.items()
        if array is not None
    ]
    made = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items() if name]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(domain, 1)]
    graph = helper.make_graph([node], "g", given, made)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = quiet()
    if kernels is not None:
        options.register_custom_ops_library(str(kernels.path))
    return Session(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def quiet() -> ort.SessionOptions:
    open_provider("cpu")  # its threads
    options = session_options(None)
    options.log_severity_level = 4  # of what is refused
    return options


def changed(random: np.random.Generator, given: Feeds) -> tuple[str, Feeds]:
    """The same, but for one input: of another size or rank, or with another integer."""
    name = str(random.choice(list(given)))
    array = given[name]
    if array.dtype.kind == "i" and array.dtype != np.int8 and array.size and random.random() < 0.7:
        limits = np.iinfo(array.dtype)
        values = [-1, 0, 1, 2, 4, 7, 8, 9, 31, 32, 33, 63, 64, 65, 10**6, limits.min, limits.max]
        found = array.copy()
        found.reshape(-1)[random.integers(array.size)] = random.choice(values)
        return f"{name} {found.tolist()}", given | {name: found}
    sizes = list(array.shape)
    axis = int(random.integers(len(sizes))) if sizes else 0
    match int(random.integers(4)) if sizes else 3:
        case 0:
            sizes[axis] = max(0, sizes[axis] + int(random.choice([-16, -8, -1, 1, 8, 16])))
        case 1:
            sizes[axis] *= int(random.choice([0, 2]))
        case 2:
            del sizes[axis]
        case _:
            sizes.insert(axis, int(random.choice([1, 2])))
    return f"{name} {sizes}", given | {name: np.resize(array, sizes)}


def refuses(session: Session, given: Feeds) -> str | None:
    try:
        session.run(None, given)
    except Exception as e:
        return str(e)
    return None


def numbers(random: np.random.Generator, *sizes: int) -> NDArray[np.float32]:
    return random.standard_normal(sizes).astype(np.float32)


def attention(random: np.random.Generator, *, int8: bool, packed: bool, batch: int, bias: bool) -> Feeds:
    tokens, past, rows, dim = (1 if batch > 1 else 5), 3, 32, 16
    width = (4 + (4 if packed else 0)) * dim
    cache = np.zeros((batch, 2, rows, dim), np.int8 if int8 else np.float32)
    found: dict[str, Any] = {
        "query": numbers(random, batch, tokens, width),
        "key": None if packed else numbers(random, batch, tokens, 2 * dim),
        "value": None if packed else numbers(random, batch, tokens, 2 * dim),
        "past_key": cache,
        "past_value": cache.copy(),
        "seqlens_k": np.full(batch, past + tokens - 1, np.int32),
        "total_sequence_length": np.array(past + tokens, np.int32),
        "cos_cache": numbers(random, 64, 8),
        "sin_cache": numbers(random, 64, 8),
        "position_ids": np.tile(np.arange(past, past + tokens), (batch, 1)).astype(np.int64),
        "attention_bias": numbers(random, 1, 1, tokens, past + tokens) if bias else None,
    }
    if int8:
        found["head_sink"] = None
        found |= {name: np.full(2 * dim, 0.1, np.float32) for name in ("k_scale", "v_scale")}
    return found


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("int8", [False, True])
def test_attention_over_a_cache(kernels: Kernels, int8: bool, bias: bool, packed: bool, batch: int) -> None:
    random = np.random.default_rng([int8, bias, packed, batch])
    inputs = attention(random, int8=int8, packed=packed, batch=batch, bias=bias)
    outputs = {"out": 1, "present_key": 3 if int8 else 1, "present_value": 3 if int8 else 1}
    attributes: dict[str, Any] = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    if int8:
        attributes |= {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": 8}
    sessions = (
        session_of("GroupQueryAttention", INT8_DOMAIN if int8 else DOMAIN, inputs, outputs, kernels, **attributes),
        session_of("GroupQueryAttention", THEIRS, inputs, outputs, None, **attributes),
    )
    compare(random, inputs, *sessions)


@pytest.mark.parametrize("bias", [1, 4])
def test_attention_to_what_an_encoder_made(kernels: Kernels, bias: int) -> None:
    random = np.random.default_rng(bias)
    keys = numbers(random, 1, 4, 40, 16)
    inputs: Any = {"query": numbers(random, 1, 3, 64), "key": keys, "value": keys.copy()}
    inputs |= {"bias": None, "key_padding_mask": None, "attention_bias": numbers(random, 1, bias, 3, 40)}
    sessions = [
        session_of("MultiHeadAttention", domain, inputs, {"out": 1}, ours, num_heads=4)
        for domain, ours in ((DOMAIN, kernels), (THEIRS, None))
    ]
    compare(random, inputs, *sessions)


def test_norms_of_a_sum(kernels: Kernels) -> None:
    random = np.random.default_rng(0)
    inputs = {"input": numbers(random, 2, 3, 64), "skip": numbers(random, 2, 3, 64), "gamma": numbers(random, 64)}
    op = "SkipSimplifiedLayerNormalization"
    sessions = [
        session_of(op, domain, inputs, {"out": 1}, ours) for domain, ours in ((DOMAIN, kernels), (THEIRS, None))
    ]
    compare(random, inputs, *sessions)


def compare(random: np.random.Generator, inputs: Feeds, ours: Session, theirs: Session) -> None:
    given = {name: array for name, array in inputs.items() if array is not None}
    assert refuses(ours, given) is None and refuses(theirs, given) is None
    refused = 0
    for _ in range(CHANGES):
        what, other = changed(random, given)
        reason = refuses(ours, other)
        # Of some other ranks, and of a sum with nothing, onnxruntime's operators die.
        survives = all(other[name].ndim == array.ndim and other[name].size for name, array in given.items())
        if survives and refuses(theirs, other) is not None:
            assert reason is not None, f"{what} is refused by onnxruntime alone"
        refused += reason is not None
    assert refused > CHANGES / 3


@pytest.mark.parametrize("change", [
    {"N": -1}, {"N": 2**32 + 64}, {"K": 0}, {"K": 2**31}, {"bits": 3}, {"block_size": 31}, {"half": 2}, {"gate": 3},
    {"norm": 1}, {"lent": 12345}, {"N": 80}, {"N": 64.0}, {"K": 96},
])  # fmt: skip
def test_a_product_with_other_attributes(kernels: Kernels, change: dict[str, Any]) -> None:
    with pytest.raises(Exception, match="MatMulNBits: "):
        product(kernels, **change)


@pytest.mark.parametrize("length", [0, 1, 63, 65, 128])
@pytest.mark.parametrize("which", ["bias", "weight"])
def test_a_product_whose_bias_or_norm_has_another_length(kernels: Kernels, which: str, length: int) -> None:
    with pytest.raises(Exception, match="MatMulNBits: .* must be float32 \\[64\\]"):
        product(kernels, **{which: np.ones(length, np.float32)})


def product(
    kernels: Kernels,
    bias: NDArray[np.float32] | None = None,
    weight: NDArray[np.float32] | None = None,
    **change: Any,
) -> None:
    layout = Layout(4, 64, 64, 32, half=False, zero_points=False)
    packed = np.zeros(kernels.packed_bytes(layout), np.uint8)
    constants = {"bias": bias, "weight": weight}
    stored = [numpy_helper.from_array(array, name) for name, array in constants.items() if array is not None]
    names = ["a", "", "", "", "", "" if bias is None else "bias", *([] if weight is None else ["more", "weight"])]
    with kernels.lend(packed) as lent:
        attributes = {"K": 64, "N": 64, "bits": 4, "block_size": 32, "lent": lent} | change
        if weight is not None:
            attributes["norm"] = 1
        node = helper.make_node("MatMulNBits", names, ["y"], domain=DOMAIN, **attributes)
        given = [helper.make_tensor_value_info(name, 1, None) for name in names if name in ("a", "more")]
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
        graph = helper.make_graph([node], "g", given, [helper.make_tensor_value_info("y", 1, None)], stored)
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        options = quiet()
        options.register_custom_ops_library(str(kernels.path))
        Session(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


CHAIN = {
    "taken": 3, "given": 2, "nodes": 1, "0.op": 2, "0.inputs": 3, "0.outputs": 4, "0.input.0": 0, "0.input.1": 1,
    "0.input.2": 2, "0.output.0": 3, "0.output.1": -1, "0.output.2": -1, "0.output.3": 4, "0.epsilon": 1e-5,
}  # fmt: skip


def chain(kernels: Kernels, kind: int = 1, **change: Any) -> Callable[[], Any]:
    rows = np.ones((3, 64), np.float32)
    inputs = {"a": rows, "b": rows, "w": rows[0]}
    found = session_of("Chain", DOMAIN, inputs, {"y": kind, "s": 1}, kernels, **(CHAIN | change))
    return lambda: found.run(None, inputs)


def test_a_chain_whose_output_is_declared_to_be_of_another_type(kernels: Kernels) -> None:
    """onnxruntime makes room for what is declared, and a graph may declare what it likes."""
    chain(kernels)()
    for kind in (3, 7, 10):
        with pytest.raises(Exception, match="output 0 of its chain is of another type"):
            chain(kernels, kind)()


@pytest.mark.parametrize("change", [
    {"taken": 2}, {"taken": 2**31}, {"given": 1}, {"given": -1}, {"nodes": 0}, {"nodes": 2}, {"nodes": 2**40},
    {"0.op": 7}, {"0.op": -1}, {"0.inputs": 2**31 - 1}, {"0.inputs": 4}, {"0.outputs": 5}, {"0.input.0": -1},
    {"0.input.0": 3}, {"0.input.0": 5}, {"0.input.0": 2**31}, {"0.output.0": 0}, {"0.output.0": 4}, {"0.output.0": 9},
    {"0.output.0": 5}, {"0.output.3": 2**32 - 1}, {"0.epsilon": float("nan")}, {"0.epsilon": -1.0}, {"0.op": 2.0},
    {"0.unit": 0}, {"units": 1, "0.unit": 0}, {"units": -1}, {"route": 9}, {"parts": 1}, {"passes": 1},
    {"units": 1, "route": 0, "0.unit": 1}, {"parts": 1, "part.0.of": 9}, {"units": 1, "route": 0, "0.unit": 0},
    {"units": 1, "route": 0, "passes": 1, "pass.0.unit": 0, "pass.0.made": 3, "pass.0.read": 0},
    {"limits": 9}, {"limits": -2}, {"ran": 0}, {"ran": 9}, {"units": 1, "route": 0, "ran": 0},
])  # fmt: skip
def test_a_chain_with_another_number(kernels: Kernels, change: dict[str, Any]) -> None:
    with pytest.raises(Exception, match="(Chain|Normalization): "):
        chain(kernels, **change)()
