"""The processor, with the kernels of XNNPACK, in onnxruntime for Android and own builds."""

from __future__ import annotations

from edge.runtime.providers.base import CPU
from edge.runtime.providers.builtin import Builtin

NAME = "xnnpack"
HELP = "the processor, with XNNPACK's kernels"
TRAITS = {"onnxruntime": "XnnpackExecutionProvider"}
BUILTIN = Builtin(NAME, TRAITS["onnxruntime"], CPU, "this processor", "builds for Android and iOS")
find, make = BUILTIN.find, BUILTIN.make
