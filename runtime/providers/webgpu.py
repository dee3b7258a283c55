"""GPUs by WebGPU (Vulkan, Metal or Direct3D 12 below it), with the plugin `onnxruntime-ep-webgpu`."""

from __future__ import annotations

from edge.runtime.providers.plugin import Plugin
from edge.runtime.providers.provider import GPU

NAME = "webgpu"
HELP = "GPUs, by WebGPU"
TRAITS = {"onnxruntime": "WebGpuExecutionProvider"}
PLUGIN = Plugin(
    NAME, TRAITS["onnxruntime"], "onnxruntime_ep_webgpu", "webgpu",
    needs="a GPU with a driver for Vulkan, Metal or Direct3D 12", kinds=(GPU,), virtual=True,
)  # fmt: skip
find, make = PLUGIN.find, PLUGIN.make
