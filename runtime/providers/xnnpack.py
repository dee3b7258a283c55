"""The processor, with the kernels of XNNPACK, in onnxruntime for Android and own builds."""

from __future__ import annotations

from edge.runtime.providers.builtin import Builtin
from edge.runtime.providers.provider import CPU

NAME = "xnnpack"
HELP = "the processor, with XNNPACK's kernels"
TRAITS = {"onnxruntime": "XnnpackExecutionProvider"}
BUILTIN = Builtin(NAME, TRAITS["onnxruntime"], CPU, "this processor", "builds for Android and iOS")
find, make = BUILTIN.find, BUILTIN.make
