"""Graphs whose nodes, attributes, tensors and functions were changed: what onnxruntime and our kernels make of them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fuzz.bundles import answer, linked, seal, write
from fuzz.damage import TEXTS, a_few, damaged_bytes, number

NAME = "graphs"
HELP = "ONNX files: nodes, attributes, tensors, functions"
TRAITS = {"inputs": ("decoder", "segments", "translator", "whisper"), "share": 4}
OFF = "off"  # a file next to the bundle, where our kernels are left out
OPERATORS = [
    *("If", "Loop", "Scan", "Identity", "Gather", "Reshape", "Tile", "Expand", "ConstantOfShape", "Range", "NoSuch"),
    *("MatMulNBits", "GroupQueryAttention", "SkipSimplifiedLayerNormalization", "RotaryEmbedding", "ScatterND", "Pad"),
]
DOMAINS = ["", "ai.onnx.ml", "com.microsoft", "edge", "edge.kernels", "com.microsoft.nchwc", "no.such"]


def prepare(whole: Path) -> None:
    """Import what runs it: libraries are no part of a case's memory."""
    answer(whole / "decoder" / "model.edge")


def make_case(choose: random.Random, whole: Path, place: Path) -> None:
    import onnx

    bundle = linked(whole / choose.choice(TRAITS["inputs"]) / "model.edge", place / "model.edge")  # type: ignore[call-overload]
    path = choose.choice(sorted(bundle.glob("graphs/*.onnx")))
    if choose.random() < 0.12:
        write(path, damaged_bytes(path.read_bytes(), choose, 20_000))
    else:
        model = onnx.load(str(path), load_external_data=False)
        for _ in range(a_few(choose)):
            choose.choice(WAYS)(model, choose)
        deep = _deep(choose) if choose.random() < 0.03 else b""
        write(path, model.SerializeToString() + deep)
    if choose.random() < 0.2:
        weights = bundle / "weights.bin"
        write(weights, damaged_bytes(weights.read_bytes(), choose))
    seal(bundle)
    if choose.random() < 0.3:
        (place / OFF).touch()


def try_one(place: Path) -> None:
    off = {"EDGE_KERNELS": "off"} if (place / OFF).exists() else {}
    with patch.dict(os.environ, off):
        bundle = place / "model.edge"
        answer(bundle, **({"skip": "unified:0.3"} if (bundle / "routers.npy").exists() else {}))


def _node(model: Any, choose: random.Random) -> Any:
    return choose.choice(model.graph.node)


def _attribute(model: Any, choose: random.Random) -> None:
    import onnx

    node = choose.choice([node for node in model.graph.node if node.attribute] or [model.graph.node[0]])
    if not node.attribute or choose.random() < 0.1:
        names = ["scale", "axis", "num_heads", "N", "K", "block_size", "body"]
        node.attribute.append(onnx.helper.make_attribute(choose.choice(names), number(choose) % (1 << 63)))
        return
    attribute = choose.choice(node.attribute)
    kind = choose.random()
    if kind < 0.12:
        node.attribute.remove(attribute)
    elif kind < 0.2:
        attribute.type = choose.randrange(15)
    elif attribute.type == onnx.AttributeProto.INT:
        attribute.i = _int64(number(choose, attribute.i))
    elif attribute.type == onnx.AttributeProto.FLOAT:
        attribute.f = choose.choice([0.0, -1.0, 1e-40, 1e38, float("nan"), float("inf")])
    elif attribute.type == onnx.AttributeProto.INTS and attribute.ints:
        attribute.ints[choose.randrange(len(attribute.ints))] = _int64(number(choose))
    elif attribute.type == onnx.AttributeProto.STRING:
        attribute.s = _text(choose).encode()[:2000]
    elif attribute.type == onnx.AttributeProto.TENSOR:
        _tensor(attribute.t, choose)


def _int64(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _text(choose: random.Random) -> str:
    return choose.choice(TEXTS).encode(errors="replace").decode()


def _initializer(model: Any, choose: random.Random) -> None:
    if model.graph.initializer:
        _tensor(choose.choice(model.graph.initializer), choose)


def _tensor(tensor: Any, choose: random.Random) -> None:
    kind = choose.random()
    if kind < 0.3 and tensor.dims:
        tensor.dims[choose.randrange(len(tensor.dims))] = _int64(number(choose, tensor.dims[0]))
    elif kind < 0.36:
        tensor.dims.append(number(choose) % (1 << 63))
    elif kind < 0.42 and tensor.dims:
        tensor.dims.pop()
    elif kind < 0.55:
        tensor.data_type = choose.choice([*range(24), 1 << 20])
    elif kind < 0.6:
        tensor.data_location = choose.randrange(2)
    elif tensor.external_data:
        entry = choose.choice(tensor.external_data)
        if entry.key == "location":
            entry.value = (
                choose.choice([*TEXTS[:14], "../../x", "edge.json", "*/_ORT_MEM_ADDR_/*"])
                .encode(errors="replace")
                .decode()
            )
        else:
            entry.value = str(number(choose, 4096)) if choose.random() < 0.9 else _text(choose)
    elif tensor.raw_data:
        tensor.raw_data = damaged_bytes(tensor.raw_data, choose)


def _wire(model: Any, choose: random.Random) -> None:
    """An input or output of a node becomes another value: cycles are among these."""
    node = _node(model, choose)
    other = _node(model, choose)
    names = [*other.output, *other.input, "", "no such value", *(i.name for i in model.graph.input)]
    wires = node.input if choose.random() < 0.8 else node.output
    kind = choose.random()
    if kind < 0.7 and wires:
        wires[choose.randrange(len(wires))] = choose.choice(names)
    elif kind < 0.85:
        wires.append(choose.choice(names))
    elif wires:
        wires.pop()


def _operator(model: Any, choose: random.Random) -> None:
    node = _node(model, choose)
    if choose.random() < 0.6:
        node.op_type = choose.choice([*OPERATORS, *(other.op_type for other in model.graph.node)])
    if choose.random() < 0.5:
        node.domain = choose.choice(DOMAINS)
        if node.domain not in {each.domain for each in model.opset_import}:
            model.opset_import.add(domain=node.domain, version=1)


def _nodes(model: Any, choose: random.Random) -> None:
    """Nodes that are missing, twice there, or in another order."""
    nodes = model.graph.node
    kind = choose.randrange(3)
    if kind == 0:
        del nodes[choose.randrange(len(nodes))]
    elif kind == 1:
        nodes.add().CopyFrom(_node(model, choose))
    else:
        order = list(nodes)
        choose.shuffle(order)
        del nodes[:]
        nodes.extend(order)


def _value(model: Any, choose: random.Random) -> None:
    """The type, shape or name of an input or output of the graph."""
    values: Sequence[Any] = choose.choice([model.graph.input, model.graph.output, model.graph.value_info])
    if not values:
        return
    value = choose.choice(values)
    kind = choose.random()
    if kind < 0.2:
        value.name = _text(choose)
    elif kind < 0.5:
        value.type.tensor_type.elem_type = choose.randrange(24)
    elif kind < 0.6:
        value.type.ClearField("tensor_type")
    elif value.type.tensor_type.shape.dim:
        choose.choice(value.type.tensor_type.shape.dim).dim_value = _int64(number(choose, 64))


def _function(model: Any, choose: random.Random) -> None:
    """A model-local function, perhaps by the name of an operator that is there, perhaps one that calls itself."""
    node = _node(model, choose)
    inputs, outputs = [f"i{i}" for i in range(len(node.input))], [f"o{i}" for i in range(len(node.output))]
    function = model.functions.add(
        name=choose.choice([node.op_type, *OPERATORS]), domain=choose.choice([node.domain, *DOMAINS])
    )
    function.input.extend(inputs)
    function.output.extend(outputs)
    function.opset_import.add(domain="", version=21)
    function.opset_import.add(domain=node.domain, version=1)
    inner = function.node.add(
        op_type=choose.choice([function.name, node.op_type]), domain=choose.choice([function.domain, node.domain])
    )
    inner.input.extend(inputs)
    inner.output.extend(outputs)
    if choose.random() < 0.5:
        inner.attribute.extend(node.attribute)
    if choose.random() < 0.7:
        node.op_type, node.domain = function.name, function.domain


def _nested(model: Any, choose: random.Random) -> None:
    """A graph in a graph in a graph."""
    import onnx

    graph = onnx.GraphProto(name="g")
    depth = choose.choice([1, 3, 5, 20])
    for _ in range(depth):
        outer = onnx.GraphProto(name="g")
        node = outer.node.add(op_type=choose.choice(["If", "Loop"]), domain="")
        node.input.append("c")
        node.output.append("y")
        for name in ("then_branch", "else_branch") if depth < 6 else ("body",):
            attribute = node.attribute.add(name=name, type=onnx.AttributeProto.GRAPH)
            attribute.g.CopyFrom(graph)
        graph = outer
    model.graph.node.extend(graph.node)


def _deep(choose: random.Random) -> bytes:
    """A node with graphs in graphs, deeper than the library writes them: what follows a message is merged into it."""

    def field(number: int, content: bytes) -> bytes:
        size, length = len(content), b""
        while size > 127:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        return bytes([number << 3 | 2]) + length + bytes([size]) + content

    graph = b""
    for _ in range(choose.choice([30, 100, 2000])):
        graph = field(1, field(4, b"If") + field(5, field(1, b"then_branch") + field(6, graph)))
    return field(7, graph)


def _version(model: Any, choose: random.Random) -> None:
    if choose.random() < 0.5:
        model.ir_version = _int64(number(choose, model.ir_version))
    else:
        choose.choice(model.opset_import).version = _int64(number(choose, 21))


def _many(model: Any, choose: random.Random) -> None:
    """Far more nodes than a graph has, in a chain."""
    name = choose.choice(model.graph.node).output[0]
    operator = choose.choice(["Identity", "Neg", "Tile"])
    for i in range(choose.choice([100, 5000])):
        node = model.graph.node.add(op_type=operator)
        node.input.append(name)
        name = f"chain{i}"
        node.output.append(name)


def _sized(model: Any, choose: random.Random) -> None:
    """An operator that a constant, or an attribute, asks for a large tensor, of which the logits are made."""
    import onnx

    numbers = choose.choice([[1 << 30], [1 << 14] * 3, [1 << 62], [-1], [1 << 10], [3000] * 60])
    tensor = onnx.helper.make_tensor("asked", onnx.TensorProto.INT64, [len(numbers)], numbers)
    model.graph.initializer.append(tensor)
    operators = ["ConstantOfShape", "Expand", "Tile", "Range", "Pad", "OneHot", "RandomNormal", "HannWindow"]
    operator = choose.choice(operators)
    logits = next((node for node in model.graph.node if "logits" in node.output), model.graph.node[-1])
    inputs = ["asked"] if operator in ("ConstantOfShape", "HannWindow") else [logits.input[0], "asked", "asked"]
    made = onnx.helper.make_node(operator, inputs[: choose.choice([1, 2, 3])], ["asked.made"])
    if operator == "RandomNormal":
        made.attribute.append(onnx.helper.make_attribute("shape", numbers))
    nodes = [made, onnx.helper.make_node("ReduceMax", ["asked.made"], ["asked.most"], keepdims=0)]
    rest = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *rest] if len(inputs) == 1 else [*rest, *nodes])


WAYS: list[Callable[[Any, random.Random], None]] = [
    *(_attribute, _attribute, _attribute, _initializer, _initializer, _initializer, _wire, _wire, _operator),
    *(_operator, _nodes, _value, _function, _nested, _version, _many, _sized),
]
