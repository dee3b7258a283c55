"""Intel's processors, GPUs and NPUs, with the plugin `onnxruntime-ep-openvino`.

A bundle's graphs have dynamic shapes, which the processor and the GPU take and an NPU does not: it comes last.
"""

from __future__ import annotations

from edge.runtime.providers.base import CPU, GPU, NPU
from edge.runtime.providers.plugin import Plugin

NAME = "openvino"
HELP = "Intel's processors, GPUs and NPUs"
TRAITS = {"onnxruntime": "OpenVINOExecutionProvider"}
PLUGIN = Plugin(
    NAME, TRAITS["onnxruntime"], "onnxruntime_ep_openvino", "npu-intel",
    needs="a processor, GPU or NPU of Intel", kinds=(CPU, GPU, NPU), virtual=True,
)  # fmt: skip
find, make = PLUGIN.find, PLUGIN.make
