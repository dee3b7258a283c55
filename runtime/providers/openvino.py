"""Intel's processors, GPUs and NPUs, with the plugin `onnxruntime-ep-openvino`.

A bundle's graphs have dynamic shapes, which the processor and the GPU take and an NPU does not: it comes last.
"""

from __future__ import annotations

import json
from types import ModuleType

from edge.runtime.providers.plugin import Plugin
from edge.runtime.providers.provider import CPU, GPU, NPU

NAME = "openvino"
HELP = "Intel's processors, GPUs and NPUs"
TRAITS = {"onnxruntime": "OpenVINOExecutionProvider"}
FLOAT32 = {"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}  # else processors that have bfloat16 round to it


def _options(module: ModuleType) -> dict[str, str]:
    return {"load_config": json.dumps(FLOAT32)}


PLUGIN = Plugin(
    NAME, TRAITS["onnxruntime"], "onnxruntime_ep_openvino", "npu-intel",
    needs="a processor, GPU or NPU of Intel", kinds=(CPU, GPU, NPU), virtual=True,
    options=_options,
)  # fmt: skip
find, make = PLUGIN.find, PLUGIN.make
