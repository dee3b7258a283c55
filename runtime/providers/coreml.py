"""Apple's NPUs and GPUs, by Core ML, in onnxruntime for macOS and iOS."""

from __future__ import annotations

from edge.runtime.providers.builtin import Builtin
from edge.runtime.providers.provider import NPU

NAME = "coreml"
HELP = "Apple's NPUs, by Core ML"
TRAITS = {"onnxruntime": "CoreMLExecutionProvider"}
BUILTIN = Builtin(NAME, TRAITS["onnxruntime"], NPU, "what Core ML chooses", "builds for macOS and iOS")
find, make = BUILTIN.find, BUILTIN.make
