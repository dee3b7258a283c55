"""One file per model family, found by name.

A family's file has `MODEL_TYPES`, the `model_type`s of transformers' configurations that it builds, and either
`decoder(config, weights, max_context)`, which returns the family's Decoder, or `encoder_decoder(...)` of the same
arguments, which returns its EncoderDecoder.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from edge.errors import ExportError


def known_families() -> list[str]:
    """The names of all families, which are those of the files beside this one."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def find_family(model_type: str) -> tuple[str, ModuleType]:
    """The family that builds models of `model_type`: its name and its file.

    Raises:
        ExportError: there is none.
    """
    for name in known_families():
        module = importlib.import_module(f"{__name__}.{name}")
        if model_type in module.MODEL_TYPES:
            return name, module
    raise ExportError(
        f"Models of the type {model_type!r} cannot be exported; known families are: {', '.join(known_families())}."
    )
