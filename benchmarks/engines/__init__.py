"""The engines that are compared: a file each, found by name in `ENGINES`, of the shape of `engines.decoding_engine`."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from engines.decoding_engine import EngineFile

# This runtime first: every ratio is its figure over another's.
ENGINES = ("edge", "onnxruntime-genai", "llama.cpp", "openvino-genai", "transformers")
_FILES = {
    "edge": "edge_runtime",
    "edge, decode graph": "edge_runtime",  # of prefill.py
    "onnxruntime-genai": "genai",
    "llama.cpp": "llamacpp",
    "openvino-genai": "ov_genai",
    "transformers": "eager",
}


def engine_file(name: str) -> EngineFile:
    """The file of one engine. Importing it imports nothing of the engine itself."""
    return cast(EngineFile, import_module(f"engines.{_FILES[name]}"))
