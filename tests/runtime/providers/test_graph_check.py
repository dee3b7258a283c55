"""A graph that came from a stranger: what no bundle may have is refused before anything is made of it."""

from __future__ import annotations

import os
import random
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from graph_changes import changed
from onnx import helper

from edge.bundle import Bundle
from edge.errors import BundleError
from edge.runtime.kernels import graph_check, graph_sizes
from edge.runtime.kernels.graph import attends_to_bytes, kernel_graph
from edge.runtime.kernels.graph_check import read_graph
from edge.runtime.kernels.library import Kernels
from edge.runtime.load import open_engine
from edge.runtime.onnx_proto import ModelProto

GRAPH = "graphs/decoder.onnx"
CASES, CASE_S = 60, 5.0  # seconds of this thread: others may keep a processor from it

Change = Callable[[onnx.ModelProto], object]


def edit(bundle: Bundle, change: Change, name: str = GRAPH) -> Path:
    path = bundle.path(name)
    model = onnx.load(path, load_external_data=False)
    change(model)
    path.write_bytes(model.SerializeToString())
    return path


def stored(model: onnx.ModelProto) -> onnx.TensorProto:
    return next(tensor for tensor in model.graph.initializer if tensor.external_data)


def where(model: onnx.ModelProto, key: str, value: str) -> None:
    next(entry for entry in stored(model).external_data if entry.key == key).value = value


def nested(inner: onnx.NodeProto | None, depth: int) -> onnx.NodeProto:
    """An If in an If in an If."""
    output = helper.make_tensor_value_info("deep.made", onnx.TensorProto.FLOAT, None)
    nodes = [] if inner is None else [inner]
    for level in range(depth):
        bodies = [helper.make_graph(nodes, f"branch{level}", [], [output]) for _ in range(2)]
        nodes = [helper.make_node("If", ["input_ids"], [f"deep.{level}"], then_branch=bodies[0], else_branch=bodies[1])]
    return nodes[0]


def own_node(domain: str, output: str = "own.made") -> onnx.NodeProto:
    return helper.make_node("Chain", ["input_ids"], [output], domain=domain, taken=1, given=1, nodes=0)


def function(model: onnx.ModelProto, domain: str = "fx") -> None:
    node = helper.make_node("Identity", ["a"], ["b"])
    model.functions.append(helper.make_function(domain, "F", ["a"], ["b"], [node], [helper.make_opsetid("", 21)]))


def circle(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[-1] = "tokens"


def loop(model: onnx.ModelProto) -> None:
    body = helper.make_graph([own_node("edge")], "body", [], [])
    model.graph.node.append(helper.make_node("Loop", ["input_ids", "input_ids"], ["looped"], body=body))


def listed_graphs(model: onnx.ModelProto) -> None:
    node = model.graph.node.add(op_type="Identity", input=["input_ids"], output=["listed"])
    node.attribute.add(name="many", type=onnx.AttributeProto.GRAPHS).graphs.add(name="g").node.append(own_node("edge"))


def constant_in_a_file(model: onnx.ModelProto) -> None:
    tensor = onnx.TensorProto()
    tensor.CopyFrom(stored(model))
    model.graph.node.insert(0, helper.make_node("Constant", [], ["constant"], value=tensor))


LARGE = [[1 << 30], [1 << 14] * 3, [1 << 62], [-(1 << 40)], [3000] * 60, [1] * 200]


def sized(model: onnx.ModelProto, draw: random.Random, operator: str, place: int, numbers: list[int], way: str) -> None:
    """An operator that makes as large a tensor as a constant says, which others may pass on."""
    kind = onnx.TensorProto.FLOAT if operator == "Resize" and place == 2 else onnx.TensorProto.INT64
    numbers = numbers[:1] if operator in ("Range", "OneHot") else numbers
    tensor = helper.make_tensor("size", kind, [len(numbers)], numbers)
    if way == "raw":
        tensor = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), "size")
    nodes, name = [], "size"
    if way == "constant":
        nodes.append(helper.make_node("Constant", [], ["size"], value=tensor))
    elif way == "numbers":
        nodes.append(helper.make_node("Constant", [], ["size"], value_ints=numbers))
    else:
        model.graph.initializer.append(tensor)
    for i in range(draw.choice([0, 0, 1, 5])):
        nodes.append(helper.make_node(draw.choice(["Identity", "Cast", "Squeeze"]), [name], [f"passed.{i}"]))
        name = f"passed.{i}"
    inputs = ["input_ids"] * place + [name]
    if operator == "Range":
        inputs = ["input_ids"] * place + [name] + ["input_ids"] * (2 - place)
    nodes.append(helper.make_node(operator, inputs, ["made"]))
    model.graph.node.extend(nodes)


SIZES = [(operator, place) for operator, places in graph_sizes.BY_INPUTS.items() for place in places]


@pytest.mark.parametrize(("operator", "place"), [each for each in SIZES if each != ("Range", 2)])
def test_a_constant_that_asks_for_a_large_tensor_is_refused(tmp_path: Path, operator: str, place: int) -> None:
    draw = random.Random(operator)
    for way in ("plain", "raw", "constant", "numbers"):
        for numbers in LARGE[::2][:2] if operator in ("Range", "OneHot") else LARGE:
            model = helper.make_model(helper.make_graph([], "g", [], []))
            model.graph.input.append(helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, None))
            sized(model, draw, operator, place, numbers, way)
            (tmp_path / "g.onnx").write_bytes(model.SerializeToString())
            with pytest.raises(BundleError, match=f"asks the operator '{operator}' for more than 67108864 numbers"):
                read_graph(tmp_path / "g.onnx", tmp_path)


@pytest.mark.parametrize("operator", sorted(graph_sizes.BY_ATTRIBUTES))
@pytest.mark.parametrize("given", [{"shape": [1 << 14] * 3}, {"sample_size": 1 << 40}, {"scales": [1e6, 1e6]}])
def test_an_attribute_that_asks_for_a_large_tensor_is_refused(
    tmp_path: Path, operator: str, given: dict[str, Any]
) -> None:
    node = helper.make_node(operator, [], ["made"], **given)
    path = tmp_path / "g.onnx"
    path.write_bytes(helper.make_model(helper.make_graph([node], "g", [], [])).SerializeToString())
    with pytest.raises(BundleError, match=f"asks the operator '{operator}' for more than"):
        read_graph(path, tmp_path)


def test_constants_of_usual_sizes_are_not(tmp_path: Path) -> None:
    draw = random.Random(51)
    for operator, place in SIZES:
        model = helper.make_model(helper.make_graph([], "g", [], []))
        model.graph.input.append(helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, None))
        sized(model, draw, operator, place, [1, 2048, 64], "plain")
        (tmp_path / "g.onnx").write_bytes(model.SerializeToString())
        read_graph(tmp_path / "g.onnx", tmp_path)


REFUSED: dict[str, tuple[Change, str]] = {
    "a circle": (circle, "reads 'tokens' before anything makes it"),
    "an operator that reads what it gives": (
        lambda m: m.graph.node.add(op_type="Identity", input=["self"], output=["self"]),
        "reads 'self'",
    ),
    "a value made twice": (lambda m: m.graph.node.append(m.graph.node[-1]), "twice"),
    "a tensor that is there twice": (lambda m: m.graph.initializer.append(stored(m)), "twice"),
    "an input that is there twice": (lambda m: m.graph.input.append(m.graph.input[0]), "twice"),
    "functions": (function, "functions of its own"),
    "functions in the plain domain": (lambda m: function(m, ""), "functions of its own"),
    "a training": (lambda m: m.training_info.add(), "a training of its own"),
    "our domain": (lambda m: m.graph.node.append(own_node("edge")), "of the domain 'edge'"),
    "our domain for bytes": (lambda m: m.graph.node.append(own_node("edge.int8")), "of the domain 'edge.int8'"),
    "a stranger's domain": (lambda m: m.graph.node.append(own_node("org.other")), "of the domain 'org.other'"),
    "our domain in a branch": (lambda m: m.graph.node.append(nested(own_node("edge", "x"), 2)), "domain 'edge'"),
    "our domain in a list of graphs": (listed_graphs, "of a type it has not"),
    "a loop": (loop, "of a type it has not"),
    "our operators imported": (
        lambda m: m.opset_import.append(helper.make_opsetid("edge", 1)),
        "imports the operators",
    ),
    "graphs in graphs": (lambda m: m.graph.node.append(nested(None, 5)), "more than 4 deep"),
    "sparse tensors": (lambda m: m.graph.sparse_initializer.add(), "sparse tensors"),
    "a constant in a file": (constant_in_a_file, "a constant in a file"),
    "our values": (
        lambda m: m.graph.node.add(op_type="Identity", input=["input_ids"], output=["likeliest.tokens"]),
        "values that edge alone makes: likeliest.tokens",
    ),
    "a key of a tensor that is none": (
        lambda m: stored(m).external_data.add(key="prepacked_0", value="1"),
        "does not say where",
    ),
    "a key of a tensor twice": (lambda m: stored(m).external_data.add(key="offset", value="0"), "does not say where"),
    "no length": (lambda m: stored(m).external_data.pop(), "does not say where"),
    "negative sizes": (lambda m: stored(m).dims.__setitem__(0, -stored(m).dims[0]), "do not fit its sizes"),
    "larger sizes": (lambda m: stored(m).dims.__setitem__(0, 2**40), "do not fit its sizes"),
    "many sizes": (lambda m: stored(m).dims.extend([1] * 10), "do not fit its sizes"),
    **{
        f"the attribute {name}": (
            lambda m, name=name: m.graph.node[-1].attribute.add(name=name, type=2, i=1),  # type: ignore[misc]
            f"the attribute '{name}'",
        )
        for name in ("matrix", "lent", "by_rows")
    },
    **{
        f"{key} {value[:20]!r}": (lambda m, key=key, value=value: where(m, key, value), told)  # type: ignore[misc]
        for key, value, told in [
            *(
                ("location", there, "no file of the bundle")
                for there in ("../weights.bin", "/etc/passwd", "graphs", "")
            ),
            *(
                ("location", there, "no file of the bundle")
                for there in ("/proc/self/mem", "none.bin", "C:\\x", "a\0b")
            ),
            *(("offset", number, "no number of bytes") for number in ("-1", "1e3", "", "9" * 30, "٣", "0x10")),
            *(("length", number, "no number of bytes") for number in ("-4096", "1.0")),
            ("offset", "999999999", "has no such bytes"),
            ("length", "999999999", "has no such bytes"),
            ("length", "0", "do not fit its sizes"),
            ("location", "edge.json", "has no such bytes"),
            ("location", "x" * 5000, "cannot be read"),
        ]
    },
}


@pytest.mark.parametrize("kernels", ["ours", "onnxruntime's"])
@pytest.mark.parametrize("case", REFUSED)
def test_what_no_bundle_may_have_is_refused(
    tiny_bundle: Bundle, case: str, kernels: str, request: pytest.FixtureRequest
) -> None:
    if kernels != "ours":
        request.getfixturevalue("onnxruntimes_kernels")
    change, told = REFUSED[case]
    edit(tiny_bundle, change)
    with pytest.raises(BundleError, match=told) as refused:
        open_engine(tiny_bundle)
    assert str(refused.value).startswith(str(tiny_bundle.path(GRAPH)))
    assert len(str(refused.value)) < len(str(tiny_bundle.root)) + 400


def test_a_graph_has_a_largest_size(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    with tiny_bundle.path(GRAPH).open("r+b") as file:
        file.truncate(graph_check.LARGEST + 1)  # of zeros that take no room
    with pytest.raises(BundleError, match=f"a graph at most {graph_check.LARGEST}"):
        read_graph(tiny_bundle.path(GRAPH), tiny_bundle.root)


def test_a_graph_has_a_largest_number_of_operators(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_check, "MOST_NODES", 10)
    with pytest.raises(BundleError, match="more than 10 operators"):
        read_graph(tiny_bundle.path(GRAPH), tiny_bundle.root)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no such pipes")
def test_a_pipe_in_place_of_a_graph_is_not_waited_for(tiny_bundle: Bundle, library: Kernels) -> None:
    for name in (GRAPH, "graphs/kv8.onnx"):
        tiny_bundle.path(name).unlink()
        os.mkfifo(tiny_bundle.path(name))
    assert not attends_to_bytes(tiny_bundle)
    with pytest.raises(BundleError, match="no plain file"):
        read_graph(tiny_bundle.path(GRAPH), tiny_bundle.root)


def without_scales_that_fit(model: onnx.ModelProto) -> None:
    """Each product reads the scales of the next, which fit other sizes."""
    products = [node for node in model.graph.node if node.op_type == "MatMulNBits"]
    scales = [node.input[2] for node in products]
    for node, other in zip(products, scales[1:] + scales[:1], strict=True):
        node.input[2] = other


@pytest.mark.parametrize(
    "change",
    [
        without_scales_that_fit,
        *(
            lambda m, name=name, number=number: [
                attribute.__setattr__("i", number)
                for node in m.graph.node
                for attribute in node.attribute
                if attribute.name == name
            ]
            for name in ("K", "N", "block_size", "bits", "accuracy_level")
            for number in (-1, 0, 3, 2**31, 2**62)
        ),
        *(
            lambda m, name=name: [
                node.attribute.add(name=name, i=64, type=2) for node in m.graph.node if node.op_type == "MatMulNBits"
            ]
            for name in ("half", "zero_points", "gate", "norm", "K")
        ),
    ],
)
def test_products_whose_tensors_do_not_fit_stay_onnxruntimes(
    tiny_bundle: Bundle, library: Kernels, change: Change
) -> None:
    """Nothing is packed for them, and nothing read where it does not lie."""
    found = kernel_graph(tiny_bundle, edit(tiny_bundle, change), library)
    model = onnx.load(tiny_bundle.path(GRAPH), load_external_data=False)
    products = sum(node.op_type == "MatMulNBits" for node in model.graph.node)
    assert (0 if found is None else len(found.matrices)) < products


def test_attributes_that_could_be_taken_for_those_of_a_chain_stay_out(tiny_bundle: Bundle, library: Kernels) -> None:
    def change(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            if node.op_type == "GroupQueryAttention" or node.op_type.endswith("SimplifiedLayerNormalization"):
                node.attribute.add(name="inputs", i=10**6, type=2)
                node.attribute.add(name="input.0", i=10**6, type=2)

    found = kernel_graph(tiny_bundle, edit(tiny_bundle, change), library)
    assert found is not None
    ours = [node for node in found.model.graph.node if node.domain == "edge"]
    assert ours and all(attribute.i < 10**6 for node in ours for attribute in node.attribute)


@pytest.mark.parametrize("name", [GRAPH, "graphs/kv8.onnx"])
def test_changed_graphs_end_in_a_sentence_or_a_graph_soon(tiny_bundle: Bundle, library: Kernels, name: str) -> None:
    whole, path = ModelProto.FromString(tiny_bundle.path(name).read_bytes()), tiny_bundle.path(name)
    assert kernel_graph(tiny_bundle, path, library) is not None
    before, refused = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0
    for seed in range(CASES):
        path.write_bytes(changed(whole, seed).SerializeToString())
        began = time.thread_time()
        attends_to_bytes(tiny_bundle)
        try:
            found = kernel_graph(tiny_bundle, path, library)
            if found is not None:
                with found.lent(library):
                    pass
        except BundleError:
            refused += 1
        assert time.thread_time() - began < CASE_S, f"seed {seed}"
    assert CASES / 4 < refused < CASES
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB, bytes on macOS


def test_a_large_graph_takes_time_in_proportion(tiny_bundle: Bundle, library: Kernels) -> None:
    """Chains and other operators in turn, 15,000 of them: what looked at each for each took minutes."""

    def change(model: onnx.ModelProto) -> None:
        norm = next(node for node in model.graph.node if node.op_type == "SimplifiedLayerNormalization")
        last = norm.output[0]
        for i in range(5_000):
            for node in (
                helper.make_node(norm.op_type, [last, norm.input[1]], [f"n{i}"], f"norm{i}", axis=-1),
                helper.make_node(norm.op_type, [f"n{i}", norm.input[1]], [f"m{i}"], f"next{i}", axis=-1),
                helper.make_node("Sigmoid", [f"m{i}"], [f"s{i}"]),
            ):
                model.graph.node.append(node)
            last = f"s{i}"
        model.graph.output.append(helper.make_tensor_value_info(last, onnx.TensorProto.FLOAT, None))

    path = edit(tiny_bundle, change)
    began = time.thread_time()
    found = kernel_graph(tiny_bundle, path, library)
    assert time.thread_time() - began < 30
    assert found is not None and len(found.inside) > 4_000
