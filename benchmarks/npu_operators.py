"""How exactly Qualcomm's NPU computes the operators of a decoder step, on its x86 simulator, by architecture.

    pip install 'edge-lm[export,npu-qualcomm]'
    python benchmarks/npu_operators.py

Every operator reads and writes integers, between QuantizeLinear and DequantizeLinear. Errors are relative to the same
operator in float32: norm of the difference over norm of the result, by onnxruntime's CPU provider over the same
integers, and by the simulator.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edge.errors import BundleError, EdgeError
from edge.runtime.providers import cpu
from edge.runtime.providers.base import Provider
from edge.runtime.providers.qnn import PLUGIN

ARCHITECTURES = ("68", "73", "75", "79")
WIDTH, ROWS, KEYS = 576, 8, 64
KINDS: dict[str, tuple[type, int]] = {"uint16": (np.uint16, 32768), "uint8": (np.uint8, 128), "int16": (np.int16, 0)}
ACTIVATIONS = "uint16"
ROOM = 1.0001  # by which the range of integers is wider than the values, so that none is cut
Array = NDArray[np.float32]


@dataclass(frozen=True)
class Operator:
    """A model of one operator, what it is given, and the result in float32."""

    model: bytes
    given: dict[str, Array]
    exact: Array

    def error(self, provider: Provider) -> float:
        """The relative error of what the provider computes; BundleError where it does not take the operator."""
        (made,) = provider.open_model(self.model, "the operator").run(self.given)
        return float(np.linalg.norm(made - self.exact) / np.linalg.norm(self.exact))


class Graph:
    """A graph of one operator between integers."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, values: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def node(self, kind: str, inputs: list[str], **attributes: Any) -> str:
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def rounded(self, name: str, values: Array, kind: str = ACTIVATIONS) -> str:
        """A value in integers, symmetric about zero."""
        dtype, zero = KINDS[kind]
        largest = (np.iinfo(dtype).max - np.iinfo(dtype).min) / 2
        grid = [self.constant(np.float32(np.abs(values).max() / largest * ROOM)), self.constant(dtype(zero))]
        return self.node("DequantizeLinear", [self.node("QuantizeLinear", [name, *grid]), *grid])

    def operator(self, result: str, given: dict[str, Array], exact: Array) -> Operator:
        """The graph whose result, in integers too, should be `exact`."""
        named = {**given, self.rounded(result, exact): exact}
        *inputs, output = (helper.make_tensor_value_info(n, TensorProto.FLOAT, x.shape) for n, x in named.items())
        graph = helper.make_graph(self.nodes, "operator", inputs, [output], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
        return Operator(bytes(model.SerializeToString()), given, exact)


def operators() -> dict[str, Operator]:
    """All that are compared, by name."""
    made, random = {}, np.random.default_rng(0)
    x = random.standard_normal((ROWS, WIDTH)).astype(np.float32)
    w = (random.standard_normal((KEYS, WIDTH)) * 0.05).astype(np.float32)
    scales = (np.abs(w).max(axis=1) / 127).astype(np.float32)
    q = np.rint(w / scales[:, None]).astype(np.int8)
    graph = Graph()
    stored = [graph.constant(each) for each in (q, scales, np.zeros(KEYS, np.int8))]
    weights = graph.node("DequantizeLinear", stored, axis=0)
    product = graph.node("Gemm", [graph.rounded("x", x), weights], transB=1)
    made["product, int8 weights"] = graph.operator(product, {"x": x}, x @ (q * scales[:, None]).T)

    chances = random.dirichlet(np.full(KEYS, 0.3), (1, 3, 3 * ROWS)).astype(np.float32)
    values = (random.standard_normal((1, 3, KEYS, 64)) * 0.1).astype(np.float32)
    given = {"chances": chances, "values": values}
    for kind in KINDS:
        graph = Graph()
        product = graph.node("MatMul", [graph.rounded("chances", chances), graph.rounded("values", values, kind)])
        made[f"attention times values in {kind}"] = graph.operator(product, given, chances @ values)

    scores = (random.standard_normal((1, 3, 3 * ROWS, KEYS)) * 4).astype(np.float32)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    graph = Graph()
    softmax = graph.node("Softmax", [graph.rounded("scores", scores)], axis=-1)
    made["softmax"] = graph.operator(softmax, {"scores": scores}, powers / powers.sum(axis=-1, keepdims=True))
    return made


def simulator(architecture: str) -> Provider:
    """The NPU's provider, which refuses what it does not run itself; EdgeError where it is not to be had here."""

    def options(module: ModuleType) -> dict[str, str]:
        return {**PLUGIN.options(module), "htp_arch": architecture}

    return dataclasses.replace(PLUGIN, options=options).make(None, None, True)


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    try:
        providers: list[Provider] = [cpu.make(), *map(simulator, ARCHITECTURES)]
    except EdgeError as e:
        print(f"npu_operators: {e}", file=sys.stderr)
        return 1
    print(f"{'':36}{'CPU':>10}" + "".join(f"{'v' + each:>10}" for each in ARCHITECTURES))
    for name, operator in operators().items():
        print(f"{name:36}" + "".join(f"{_told(operator, each):>10}" for each in providers), flush=True)
    return 0


def _told(operator: Operator, provider: Provider) -> str:
    try:
        return f"{operator.error(provider):.5f}"
    except BundleError:
        return "refused"


if __name__ == "__main__":
    sys.exit(main())
