"""Linear attention and convolutions over the states of a text: what onnxruntime's operators compute, with the same bits
however a text is cut, whatever computes them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edge.runtime.kernels.library import DOMAIN, VARIABLE, Kernels
from edge.runtime.kernels.over_states import CONVOLUTION, LINEAR, take_states
from edge.runtime.onnx_proto import ModelProto
from edge.runtime.providers.cpu import session_options
from edge.runtime.providers.threads import share_thread_pool

Floats = NDArray[np.float32]
SHAPES = {  # query heads, heads, rows, columns, whether it learns by a delta
    "delta": (4, 4, 16, 32, True),
    "delta of a few queries": (2, 6, 128, 128, True),
    "scan": (1, 8, 128, 16, False),
    "scan of two groups": (2, 4, 34, 80, False),
}
TOKENS = 21


@pytest.fixture
def over_states(kernels: Kernels) -> Kernels:
    if not kernels.state_rows:
        pytest.skip("the edge_kernels that are installed have no operators over states; build them again")
    return kernels


def model_of(node: Any, given: dict[str, list[int | str]], stored: dict[str, Floats]) -> Any:
    """A graph of one node as exporters write it."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name, sizes in given.items()]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in node.output]
    tensors = [numpy_helper.from_array(values, name) for name, values in stored.items()]
    graph = helper.make_graph([node], "g", values, outputs, tensors)
    domains = [helper.make_opsetid(*each) for each in (("", 21), ("com.microsoft", 1), (DOMAIN, 1))]
    made = helper.make_model(graph, opset_imports=domains, ir_version=10)
    return ModelProto.FromString(made.SerializeToString())


def linear(shape: str) -> Any:
    queries, heads, rows, columns, delta = SHAPES[shape]
    names = ["query", "key", "value", "past", "decay", *(["rate"] if delta else [])]
    node = helper.make_node(
        LINEAR, names, ["out", "present"], domain="com.microsoft", q_num_heads=queries, kv_num_heads=heads,
        update_rule="gated_delta" if delta else "gated", **({} if delta else {"scale": 1.0}),
    )  # fmt: skip
    sizes: dict[str, list[int | str]] = {
        "query": ["B", "S", queries * rows], "key": ["B", "S", queries * rows], "value": ["B", "S", heads * columns],
        "past": ["B", heads, rows, columns], "decay": ["B", "S", heads], "rate": ["B", "S", heads],
    }  # fmt: skip
    return model_of(node, {name: sizes[name] for name in names}, {})


def convolution(channels: int, taps: int, *, silu: bool, bias: bool) -> Any:
    random = np.random.default_rng(5)
    stored = {"weight": random.standard_normal((channels, 1, taps)).astype(np.float32)}
    if bias:
        stored["bias"] = random.standard_normal(channels).astype(np.float32)
    names = ["x", "weight", "bias" if bias else "", "past"]
    node = helper.make_node(
        CONVOLUTION, names, ["out", "present"], domain="com.microsoft", channels_last=1,
        activation="silu" if silu else "none",
    )  # fmt: skip
    return model_of(node, {"x": ["B", "S", channels], "past": ["B", taps - 1, channels]}, stored)


def session(model: Any, kernels: Kernels | None) -> ort.InferenceSession:
    """With our operator in place of onnxruntime's, where there are kernels."""
    share_thread_pool(2)
    options = session_options(None)
    options.log_severity_level = 4  # of what is refused
    made = ModelProto.FromString(model.SerializeToString())
    if kernels is not None:
        take_states(made.graph, {tensor.name: tensor for tensor in made.graph.initializer}, kernels)
        assert made.graph.node[0].domain == DOMAIN
        options.register_custom_ops_library(str(kernels.path))
    return ort.InferenceSession(made.SerializeToString(), options, ["CPUExecutionProvider"])


def some_inputs(model: Any, batch: int, tokens: int) -> dict[str, Floats]:
    random, made = np.random.default_rng(1), {}
    for value in model.graph.input:
        sizes = [d.dim_value or {"B": batch, "S": tokens}[d.dim_param] for d in value.type.tensor_type.shape.dim]
        made[value.name] = random.standard_normal(sizes).astype(np.float32) / 4
    if "decay" in made:
        made["decay"] = -abs(made["decay"])
    return made


MODELS = {
    **{name: linear(name) for name in SHAPES},
    "convolution": convolution(96, 4, silu=True, bias=False),
    "convolution with a bias": convolution(1040, 3, silu=False, bias=True),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tokens", [1, TOKENS])
def test_it_computes_what_onnxruntime_does(over_states: Kernels, name: str, tokens: int) -> None:
    given = some_inputs(MODELS[name], 2, tokens)
    ours, theirs = (session(MODELS[name], kernels).run(None, given) for kernels in (over_states, None))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5 * np.abs(b).max())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sizes", [[1] * TOKENS, [2, 1, 17, 1]], ids=["tokens", "chunks"])
def test_a_text_has_the_same_bits_however_it_is_cut(over_states: Kernels, name: str, sizes: list[int]) -> None:
    """Of two texts next to each other: each as it is alone. The states are read and written in place."""
    run, given = session(MODELS[name], over_states), some_inputs(MODELS[name], 2, TOKENS)
    whole = run.run(None, given)
    for text in range(2):
        own = {key: values[text : text + 1] for key, values in given.items()}
        state = np.ascontiguousarray(own.pop("past"))
        made, start = [], 0
        for size in sizes:
            part = {key: np.ascontiguousarray(values[:, start : start + size]) for key, values in own.items()}
            binding = run.io_binding()
            for key, values in part.items():
                binding.bind_cpu_input(key, values)
            for bind, key in ((binding.bind_input, "past"), (binding.bind_output, "present")):
                bind(key, "cpu", 0, np.float32, state.shape, state.ctypes.data)
            binding.bind_output("out")
            run.run_with_iobinding(binding)
            made.append(binding.copy_outputs_to_cpu()[1])
            start += size
        np.testing.assert_array_equal(np.concatenate(made, 1), whole[0][text : text + 1])
        np.testing.assert_array_equal(state, whole[1][text : text + 1])


@pytest.mark.parametrize(("name", "changed", "sizes"), [
    ("delta", "query", (2, 5, 60)),
    ("delta", "key", (2, 5, 60)),
    ("delta", "value", (2, 4, 128)),
    ("delta", "decay", (2, 5, 64)),
    ("delta", "rate", (2, 5, 1)),
    ("scan", "past", (2, 8, 127, 16)),
    ("convolution", "x", (2, 5, 95)),
    ("convolution", "past", (1, 3, 96)),
])  # fmt: skip
def test_other_sizes_are_refused(over_states: Kernels, name: str, changed: str, sizes: tuple[int, ...]) -> None:
    model = ModelProto.FromString(MODELS[name].SerializeToString())
    given = some_inputs(model, 2, 5) | {changed: np.zeros(sizes, np.float32)}
    run = session_without_sizes(model, over_states)
    with pytest.raises(Exception, match="LinearAttention: |CausalConvWithState: "):
        run.run(None, given)


def session_without_sizes(model: Any, kernels: Kernels) -> ort.InferenceSession:
    """A session whose inputs may be of any sizes, which onnxruntime then does not check."""
    take_states(model.graph, {tensor.name: tensor for tensor in model.graph.initializer}, kernels)
    for value in model.graph.input:
        for d in value.type.tensor_type.shape.dim:
            d.Clear()
    return session(model, kernels)


@pytest.mark.parametrize("change", ["attribute", "rows", "weight"])
def test_what_it_does_not_compute_stays_onnxruntimes(over_states: Kernels, change: str) -> None:
    model = ModelProto.FromString(MODELS["convolution" if change == "weight" else "scan"].SerializeToString())
    graph = model.graph
    if change == "attribute":
        graph.node[0].attribute.add(name="state_window", i=1, type=2)
    elif change == "rows":
        next(v for v in graph.input if v.name == "past").type.tensor_type.shape.dim[2].dim_value = 127
    else:
        graph.initializer[0].dims[0] = 97
    take_states(graph, {tensor.name: tensor for tensor in graph.initializer}, over_states)
    assert graph.node[0].domain == "com.microsoft"


FORMS = """
import sys
sys.path[:0] = sys.argv[1:]
import numpy as np, test_states
from edge.runtime.kernels.library import find_kernels
for name, model in test_states.MODELS.items():
    for each in test_states.session(model, find_kernels()).run(None, test_states.some_inputs(model, 2, 9)):
        sys.stdout.buffer.write(each.tobytes())
"""


def test_it_is_the_same_whatever_computes_it(over_states: Kernels) -> None:
    made = {}
    for form in ("portable", "avx2", over_states.form):
        variables = os.environ | {VARIABLE: form}
        paths = [str(Path(__file__).parent), *sys.path]
        done = subprocess.run([sys.executable, "-c", FORMS, *paths], capture_output=True, env=variables)
        if b"cannot run" in done.stderr:
            continue
        assert done.returncode == 0, done.stderr.decode()
        made[form] = done.stdout
    assert len(made[over_states.form]) > 0
    assert all(each == made[over_states.form] for each in made.values())
