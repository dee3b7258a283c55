"""Small language models on your own device: export a checkpoint once, run the bundle anywhere.

    model = edge.load("smollm2-135m-instruct")
    print(model.generate("Why is the sky blue?").text)

What this package names is imported when it is first used, so that `import edge` costs next to nothing.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge.bundle import Bundle as Bundle
    from edge.bundle import open_bundle as open_bundle
    from edge.errors import BundleError as BundleError
    from edge.errors import CatalogError as CatalogError
    from edge.errors import CheckpointError as CheckpointError
    from edge.errors import EdgeError as EdgeError
    from edge.errors import ExportError as ExportError
    from edge.errors import InputError as InputError
    from edge.errors import MissingExtraError as MissingExtraError
    from edge.export import export as export
    from edge.loading import load as load
    from edge.runtime.chat import Chat as Chat
    from edge.runtime.decode.answer import Piece as Piece
    from edge.runtime.decode.answer import Result as Result
    from edge.runtime.decode.answer import Timings as Timings
    from edge.runtime.decode.generate_options import GenerateOptions as GenerateOptions
    from edge.runtime.decode.text2text_options import Text2TextOptions as Text2TextOptions
    from edge.runtime.embed.embed_options import EmbedOptions as EmbedOptions
    from edge.runtime.embed.embedder import Embedder as Embedder
    from edge.runtime.embed.rerank_options import RerankOptions as RerankOptions
    from edge.runtime.embed.reranker import Ranked as Ranked
    from edge.runtime.embed.reranker import Reranker as Reranker
    from edge.runtime.model import Model as Model
    from edge.runtime.speech.segments import Segment as Segment
    from edge.runtime.speech.transcribe import Transcriber as Transcriber
    from edge.runtime.speech.transcribe import Transcript as Transcript
    from edge.runtime.speech.transcribe_options import TranscribeOptions as TranscribeOptions
    from edge.runtime.text.template import Message as Message
    from edge.runtime.text2text import Text2Text as Text2Text

__version__ = "0.1.0"  # the distribution's too: pyproject.toml reads it here

_HOMES = {
    "edge.bundle": ("Bundle", "open_bundle"),
    "edge.errors": (
        *("BundleError", "CatalogError", "CheckpointError", "EdgeError"),
        *("ExportError", "InputError", "MissingExtraError"),
    ),
    "edge.loading": ("load",),
    "edge.runtime.decode.answer": ("Piece", "Result", "Timings"),
    "edge.runtime.decode.generate_options": ("GenerateOptions",),
    "edge.runtime.chat": ("Chat",),
    "edge.runtime.embed.embed_options": ("EmbedOptions",),
    "edge.runtime.embed.embedder": ("Embedder",),
    "edge.runtime.embed.rerank_options": ("RerankOptions",),
    "edge.runtime.embed.reranker": ("Ranked", "Reranker"),
    "edge.runtime.model": ("Model",),
    "edge.runtime.speech.segments": ("Segment",),
    "edge.runtime.speech.transcribe": ("Transcriber", "Transcript"),
    "edge.runtime.speech.transcribe_options": ("TranscribeOptions",),
    "edge.runtime.text.template": ("Message",),
    "edge.runtime.decode.text2text_options": ("Text2TextOptions",),
    "edge.runtime.text2text": ("Text2Text",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
__all__ = ["export", *_HOME]


# From 1.31 on onnxruntime's wheels tell Microsoft how they are used unless this is set before they are imported. What
# runs on a device stays there; besides, it is a thread, a database in the user's cache and 2 MB. Who wants it sets it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def __getattr__(name: str) -> Any:
    if name == "export":  # the package edge.export, which can be called
        return import_module("edge.export")
    if name not in _HOME:
        raise AttributeError(f"module 'edge' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
