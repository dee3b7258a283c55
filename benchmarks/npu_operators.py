"""How exactly Qualcomm's NPU computes the operators of a decoder step, on its x86 simulator, by architecture.

    pip install 'edge-lm[export,npu-qualcomm]'
    python benchmarks/npu_operators.py

Every operator reads and writes integers, between QuantizeLinear and DequantizeLinear. Errors are relative to the same
operator in float32: norm of the difference over norm of the result, by onnxruntime's CPU provider over the same
integers, and by the simulator.
"""

from __future__ import annotations

import argparse
import importlib
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

ARCHITECTURES = ("68", "73", "75", "79")
WIDTH, ROWS, KEYS = 576, 8, 64
KINDS: dict[str, tuple[type, int]] = {"uint16": (np.uint16, 32768), "uint8": (np.uint8, 128), "int16": (np.int16, 0)}
Array = NDArray[np.float32]


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
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def rounded(self, name: str, values: Array, kind: str) -> str:
        """A value in integers, symmetric about zero."""
        dtype, zero = KINDS[kind]
        largest = (np.iinfo(dtype).max - np.iinfo(dtype).min) / 2
        parts = [self.constant(np.float32(np.abs(values).max() / largest * 1.0001)), self.constant(dtype(zero))]
        return self.node("DequantizeLinear", [self.node("QuantizeLinear", [name, *parts]), *parts])

    def model(self, given: dict[str, Array], shape: tuple[int, ...]) -> bytes:
        self.nodes[-1].output[0] = "y"
        made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)]
        inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape) for name, x in given.items()]
        graph = helper.make_graph(self.nodes, "operator", inputs, made, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
        written: bytes = model.SerializeToString()
        return written


def operators() -> dict[str, tuple[bytes, dict[str, Array], Array]]:
    """By name: a model, what it is given, and the result in float32."""
    made, random = {}, np.random.default_rng(0)
    x = random.standard_normal((ROWS, WIDTH)).astype(np.float32)
    w = (random.standard_normal((KEYS, WIDTH)) * 0.05).astype(np.float32)
    scales = (np.abs(w).max(axis=1) / 127).astype(np.float32)
    q = np.rint(w / scales[:, None]).astype(np.int8)
    exact = x @ (q * scales[:, None]).T
    graph = Graph()
    zeros = np.zeros(KEYS, np.int8)
    weights = graph.node("DequantizeLinear", [graph.constant(each) for each in (q, scales, zeros)], axis=0)
    graph.rounded(graph.node("Gemm", [graph.rounded("x", x, "uint16"), weights], transB=1), exact, "uint16")
    made["product, int8 weights"] = graph.model({"x": x}, exact.shape), {"x": x}, exact

    chances = random.dirichlet(np.full(KEYS, 0.3), (1, 3, 3 * ROWS)).astype(np.float32)
    values = (random.standard_normal((1, 3, KEYS, 64)) * 0.1).astype(np.float32)
    for kind in KINDS:
        exact, graph = chances @ values, Graph()
        pair = [graph.rounded("chances", chances, "uint16"), graph.rounded("values", values, kind)]
        graph.rounded(graph.node("MatMul", pair), exact, "uint16")
        given = {"chances": chances, "values": values}
        made[f"attention times values in {kind}"] = graph.model(given, exact.shape), given, exact

    scores = (random.standard_normal((1, 3, 3 * ROWS, KEYS)) * 4).astype(np.float32)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    exact, graph = powers / powers.sum(axis=-1, keepdims=True), Graph()
    graph.rounded(graph.node("Softmax", [graph.rounded("x", scores, "uint16")], axis=-1), exact, "uint16")
    made["softmax"] = graph.model({"x": scores}, exact.shape), {"x": scores}, exact
    return made


def error(made: Array, exact: Array) -> float:
    return float(np.linalg.norm(made - exact) / np.linalg.norm(exact))


def options(architecture: str) -> ort.SessionOptions:
    plugin = importlib.import_module("onnxruntime_qnn")
    if not any(device.ep_name == plugin.get_ep_name() for device in ort.get_ep_devices()):
        ort.register_execution_provider_library(plugin.get_ep_name(), plugin.get_library_path())
    devices = [device for device in ort.get_ep_devices() if device.ep_name == plugin.get_ep_name()]
    made = quiet()
    made.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    backend = {"backend_path": plugin.get_qnn_htp_path(), "offload_graph_io_quantization": "0"}
    made.add_provider_for_devices(devices[:1], backend | {"htp_arch": architecture})
    return made


def quiet() -> ort.SessionOptions:
    made = ort.SessionOptions()
    made.log_severity_level = 4
    return made


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"{'':36}{'CPU':>10}" + "".join(f"{'v' + each:>10}" for each in ARCHITECTURES))
    for name, (model, given, exact) in operators().items():
        found = [f"{error(ort.InferenceSession(model, quiet()).run(None, given)[0], exact):.5f}"]
        for architecture in ARCHITECTURES:
            try:
                session = ort.InferenceSession(model, options(architecture))
            except Exception:  # onnxruntime's refusal of a node has no class of its own
                found.append("refused")
                continue
            found.append(f"{error(session.run(None, given)[0], exact):.5f}")
        print(f"{name:36}" + "".join(f"{each:>10}" for each in found), flush=True)


if __name__ == "__main__":
    main()
