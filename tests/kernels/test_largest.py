"""One operator of ours finds the token with the largest logit, where a graph looks for it as exporters write it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.runtime.kernels import graph as kernel_graph
from edge.runtime.kernels.largest import LARGEST, LOGITS, TOKENS, take_largest
from edge.runtime.kernels.library import DOMAIN, VARIABLE, Kernels, find_kernels
from edge.runtime.load import open_engine
from edge.runtime.onnx_proto import ModelProto
from edge.runtime.providers.cpu import session_options
from edge.runtime.providers.threads import share_thread_pool

FLOAT, INT64 = 1, 7  # TensorProto.DataType
WIDTHS = (1, 9, 63, 64, 65, 2048, 2049, 6000, 51865)


def session(kernels: Kernels, threads: int | None = None) -> ort.InferenceSession:
    """The operator by itself."""
    model: Any = ModelProto(ir_version=10)
    for domain in ("", DOMAIN):
        model.opset_import.add(domain=domain, version=21 if not domain else 1)
    graph = model.graph
    graph.name = LARGEST
    graph.node.add(op_type=LARGEST, domain=DOMAIN, input=[LOGITS], output=[TOKENS])
    graph.input.add(name=LOGITS).type.tensor_type.elem_type = FLOAT
    graph.output.add(name=TOKENS).type.tensor_type.elem_type = INT64
    share_thread_pool(threads)
    options = session_options(None)
    options.log_severity_level = 4  # of what is refused
    options.register_custom_ops_library(str(kernels.path))
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def some_logits(width: int) -> NDArray[np.float32]:
    """Of two sequences of three rows: among them some with equals, and with what is no number, or forbidden."""
    logits = (np.random.default_rng(width).standard_normal((2, 3, width)) * 4).astype(np.float32)
    logits[0, 1] = np.round(logits[0, 1])
    logits[0, 2, :: max(1, width // 7)] = np.nan
    logits[1, 0] = -np.inf
    logits[1, 1, : width // 2] = -np.inf
    logits[1, 2] = -abs(logits[1, 2]) * 0  # zeros of both signs
    logits[1, 2, 1::2] *= -1
    return logits


def found(run: ort.InferenceSession, logits: NDArray[np.float32]) -> NDArray[np.int64]:
    (tokens,) = run.run([TOKENS], {LOGITS: logits})
    return np.asarray(tokens)


@pytest.mark.parametrize("width", WIDTHS)
def test_it_is_the_first_of_the_largest(kernels: Kernels, width: int) -> None:
    logits = some_logits(width)
    expected = np.where(np.isnan(logits), -np.inf, logits).argmax(axis=2)
    np.testing.assert_array_equal(found(session(kernels), logits), expected)


@pytest.mark.parametrize("shape", [(1, 2, 0), (3, 4), (1,)])
def test_logits_of_no_token_or_of_other_sizes_are_refused(kernels: Kernels, shape: tuple[int, ...]) -> None:
    with pytest.raises(Exception, match="logits"):
        found(session(kernels), np.zeros(shape, np.float32))


def test_of_no_rows_there_are_no_tokens(kernels: Kernels) -> None:
    assert found(session(kernels), np.zeros((1, 0, 100), np.float32)).shape == (1, 0)


def test_it_is_the_same_whatever_computes_it(kernels: Kernels) -> None:
    made = {}
    for form in ("portable", "avx2", "avx512_vnni"):
        for threads in (1, 3):
            command, environment = [sys.executable, __file__, str(threads)], {**os.environ, VARIABLE: form}
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
            made[form, threads] = done.stdout
    assert len({text for text in made.values() if text}) == 1


def decoder(bundle: Bundle, kernels: Kernels) -> Any:
    found = kernel_graph.kernel_graph(bundle, bundle.path(bundle.manifest.graph("decoder").path), kernels, apart=True)
    assert found is not None
    return found.model.graph


def test_a_graph_looks_for_it_in_one_operator_and_finds_what_onnxruntime_does(
    tiny_bundle: Bundle, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {node.op_type for node in decoder(tiny_bundle, kernels).node}
    assert LARGEST in kinds and not kinds & {"ArgMax", "ReduceMax", "GatherND", "Pad"}
    text, made = np.arange(3, 30), []
    for take in (take_largest, lambda *_: None):
        monkeypatch.setattr(kernel_graph, "take_largest", take)
        engine = open_engine(tiny_bundle)
        made.append(engine.step(engine.new_cache(64), text, np.arange(27), want="tokens").copy())
    np.testing.assert_array_equal(made[0], made[1])


def blocks(vocabulary: int, block: int, missing: int) -> tuple[Any, dict[str, Any]]:
    """A graph that looks in blocks, and its stored tensors."""
    graph: Any = ModelProto().graph
    graph.node.add(op_type="Product", output=[LOGITS], input=["x"])
    source = LOGITS
    if missing:
        graph.node.add(op_type="Pad", input=[LOGITS, "missing", "never"], output=["filled"])
        source = "filled"
    graph.node.add(op_type="Reshape", input=[source, "sizes"], output=["blocks"])

    def add(op_type: str, inputs: list[str], output: str, **numbers: int) -> None:
        node = graph.node.add(op_type=op_type, input=inputs, output=[output])
        for name, number in numbers.items():
            node.attribute.add(name=name, i=number, type=2)

    add("ReduceMax", ["blocks", "axes"], "tops", keepdims=0)
    add("ArgMax", ["tops"], "best", axis=-1, keepdims=1)
    add("GatherND", ["blocks", "best"], "row", batch_dims=2)
    add("ArgMax", ["row"], "place", axis=-1, keepdims=1)
    add("Mul", ["best", "width"], "start")
    add("Add", ["start", "place"], "total")
    add("Reshape", ["total", "flat"], TOKENS)
    for name in (LOGITS, TOKENS):
        graph.output.add(name=name)
    numbers = {"sizes": [0, -1, (vocabulary + missing) // block, block], "axes": [3], "width": [block], "flat": [0, -1],
               "missing": [0, 0, 0, 0, 0, missing]}  # fmt: skip
    for name, held in numbers.items():
        graph.initializer.add(name=name, data_type=INT64, raw_data=np.array(held, np.int64).tobytes())
    graph.initializer.add(name="never", data_type=FLOAT, raw_data=np.float32(-np.inf).tobytes())
    return graph, {tensor.name: tensor for tensor in graph.initializer}


@pytest.mark.parametrize(("vocabulary", "block", "missing"), [(6000, 100, 0), (5990, 100, 10)])
def test_what_exporters_write_is_recognized(vocabulary: int, block: int, missing: int) -> None:
    graph, stored = blocks(vocabulary, block, missing)
    take_largest(graph, stored)
    assert [(node.op_type, [*node.input]) for node in graph.node] == [("Product", ["x"]), (LARGEST, [LOGITS])]


def change(graph: Any, stored: dict[str, Any], what: str) -> None:
    """Let the graph look for something else."""
    kind, _, name = what.partition(" ")
    if kind == "number":
        held = np.frombuffer(stored[name].raw_data, np.int64).copy()
        held[-1] += 1
        stored[name].raw_data = held.tobytes()
    elif kind == "filler":
        stored["never"].raw_data = np.float32(0).tobytes()
    elif kind == "outside":
        stored[name].data_location = 1
    else:
        (node,) = (node for node in graph.node if name in node.output)
        if kind == "operator":
            node.op_type = "Other"
        elif kind == "domain":
            node.domain = "other"
        elif kind == "input":
            node.input[0] = "x"
        else:
            node.attribute[0].i += 1


VALUES = ("filled", "blocks", "tops", "best", "row", "place", "start", "total", TOKENS)
CHANGES = [
    *(f"number {name}" for name in ("sizes", "axes", "width", "flat", "missing")),
    *(f"outside {name}" for name in ("sizes", "axes", "width", "flat", "missing")),
    *(f"{kind} {name}" for kind in ("operator", "domain", "input") for name in VALUES),
    *(f"attribute {name}" for name in ("tops", "best", "row", "place")),
    "filler",
]


@pytest.mark.parametrize("what", [each for each in CHANGES if each != "number missing"])
def test_what_looks_for_something_else_is_left_as_it_is(what: str) -> None:
    graph, stored = blocks(5990, 100, 10)
    change(graph, stored, what)
    before = graph.SerializeToString()
    take_largest(graph, stored)
    assert graph.SerializeToString() == before


if __name__ == "__main__":
    mine = find_kernels()
    if mine is not None:
        print([found(session(mine, int(sys.argv[1])), some_logits(width)).tolist() for width in WIDTHS])
