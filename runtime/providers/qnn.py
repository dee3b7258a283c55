"""Qualcomm's NPUs (Hexagon, QNN's backend HTP), with the plugin `onnxruntime-qnn`, which simulates one on x86.

It takes graphs of fixed shapes with quantized activations. Of a graph for the CPU it takes next to nothing.
"""

from __future__ import annotations

from types import ModuleType

from edge.runtime.providers.base import NPU
from edge.runtime.providers.plugin import Plugin

NAME = "qnn"
HELP = "Qualcomm's NPUs; on x86 a simulator"
TRAITS = {"onnxruntime": "QNNExecutionProvider"}


def _options(module: ModuleType) -> dict[str, str]:
    # By default the CPU quantizes what goes in and out.
    return {"backend_path": module.get_qnn_htp_path(), "offload_graph_io_quantization": "0"}


PLUGIN = Plugin(
    NAME, TRAITS["onnxruntime"], "onnxruntime_qnn", "npu-qualcomm",
    needs="a Qualcomm NPU, or an x86 processor for its simulator", kinds=(NPU,), simulates="Hexagon", options=_options,
)  # fmt: skip
find, make = PLUGIN.find, PLUGIN.make
