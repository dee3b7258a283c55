"""Shapes and types of a model's tensors from the headers of its files. Reading them takes a tenth of a second. Opening
the model takes seconds, because its libraries are imported first."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge import names
from edge.adapter import is_adapter
from edge.errors import EdgeError
from edge.export.graph.families import FAMILIES
from edge.gguf_parts import name_of
from edge.home import expanded

SHARDS = "model.safetensors.index.json"
MODULES = "modules.json"  # of sentence-transformers
QUANTIZED = ("quantization_config", "compression_config")  # of a folder: its tensors are not the model's
MAX_HEADER = 1 << 26  # bytes; the names of 100,000 tensors take 12 MB
HALVES = ("encoder.", "enc.")  # in names of tensors that only encoder-decoders have
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Glance:
    """A model's name and kind, and the shapes [rows, columns] and stored types of its tensors by their names in the
    files."""

    name: str
    kind: str
    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, str]

    embeds = False  # a model for vectors gets no glance

    @property
    def config(self) -> dict[str, Any]:
        return {"is_encoder_decoder": any(half in name for name in self.shapes for half in HALVES)}

    def names(self) -> list[str]:
        return list(self.shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.shapes[name]

    def stored_type(self, name: str) -> str:
        return self.types[name]

    def form(self, name: str) -> None:
        """Return None, as there is nothing more to know: folders with quantized tensors get no glance, and the stored
        types of a GGUF name its blocks."""

    def gguf_type(self, name: str) -> None:
        """Return None, as `form` does."""


def glance_at(source: str) -> Glance | None:
    """Read the headers of the model that `source` names; None if it is not here yet, or if its headers are not enough.
    Errors are left to the code that opens the model."""
    try:
        path, name, kind = expanded(source), None, None
        if not os.path.exists(path):  # noqa: PTH110 - of any name: Path's raises where one is too long
            named = names.find(source)
            local = None if named is None else named.local()
            if named is None or local is None:
                return None
            path, name, kind = local, named.titled(local), named.kind
        if path.is_dir():
            tensors = dict(_in_folder(path))
            name, kind = name or path.resolve().name, kind or "directory"
        else:
            tensors = dict(_in_gguf(path))
            name, kind = name or name_of(path), kind or "gguf"
    except (EdgeError, OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, struct.error):
        return None
    shapes = {name: shape for name, (shape, _) in tensors.items()}
    return Glance(name, kind, shapes, {name: type_ for name, (_, type_) in tensors.items()}) if shapes else None


def _in_gguf(path: Path) -> Iterator[tuple[str, tuple[tuple[int, ...], str]]]:
    from edge.export.facts.gguf_header import open_gguf

    for name, info in open_gguf(path).tensors.items():
        yield name, (info.shape, info.type.name)


def _in_folder(root: Path) -> Iterator[tuple[str, tuple[tuple[int, ...], str]]]:
    """Yield the shapes and types in a folder with safetensors whose integers are the model's; nothing for other
    folders."""
    config = json.loads((root / "config.json").read_text(encoding="utf-8"))
    if is_adapter(root) or any(config.get(key) for key in QUANTIZED):
        return
    kind, text = config.get("model_type"), config.get("text_config")
    if FAMILIES.keys().isdisjoint([kind, text.get("model_type") if isinstance(text, dict) else None]):
        return  # it is traced
    if (root / MODULES).is_file() or (kind in FAMILIES and FAMILIES[kind].traits.get("embeds")):
        return
    files = ["model.safetensors"]
    if not (root / files[0]).is_file():
        files = sorted(set(json.loads((root / SHARDS).read_text(encoding="utf-8"))["weight_map"].values()))
    for file in files:
        for name, about in _header(root / file).items():
            if name != HEAD or not config.get("tie_word_embeddings", True):
                yield name, (tuple(map(int, about["shape"])), str(about["dtype"]))


def _header(path: Path) -> dict[str, dict[str, Any]]:
    """Read the header of a file of safetensors: 8 bytes of its length, and JSON."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        if size > MAX_HEADER:
            return {}
        found: dict[str, dict[str, Any]] = json.loads(file.read(size))
    found.pop("__metadata__", None)
    return found
