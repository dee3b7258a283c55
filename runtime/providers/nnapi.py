"""Android's accelerators, by NNAPI, in onnxruntime for Android."""

from __future__ import annotations

from edge.runtime.providers.builtin import Builtin
from edge.runtime.providers.provider import NPU

NAME = "nnapi"
HELP = "Android's accelerators, by NNAPI"
TRAITS = {"onnxruntime": "NnapiExecutionProvider"}
BUILTIN = Builtin(NAME, TRAITS["onnxruntime"], NPU, "what NNAPI chooses", "builds for Android")
find, make = BUILTIN.find, BUILTIN.make
