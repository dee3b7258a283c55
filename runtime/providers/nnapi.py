"""Android's accelerators, by NNAPI, in onnxruntime for Android."""

from __future__ import annotations

from edge.runtime.providers.base import NPU
from edge.runtime.providers.builtin import Builtin

NAME = "nnapi"
HELP = "Android's accelerators, by NNAPI"
TRAITS = {"onnxruntime": "NnapiExecutionProvider"}
BUILTIN = Builtin(NAME, TRAITS["onnxruntime"], NPU, "what NNAPI chooses", "builds for Android")
find, make = BUILTIN.find, BUILTIN.make
