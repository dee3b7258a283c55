"""The bundles and models that the cache has, by the names that commands take."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from edge import catalog
from edge.bundle import Bundle
from edge.cli.run.made import called, kept, last_used
from edge.cli.run.recorded import records
from edge.embedding_format import EMBEDDER, RERANKER
from edge.home import cache_dir

BUNDLE, MODEL = "bundle", "model"
DOES = {EMBEDDER: ", vectors", RERANKER: ", ranks"}


@dataclass(frozen=True)
class Here:
    """Something that is here. used: when it was last, in seconds since 1970.

    kind: BUNDLE, which was made of a model, or MODEL, which was fetched.
    """

    name: str
    kind: str
    what: str
    bytes: int
    used: float
    path: Path


def everything() -> list[Here]:
    """All bundles and models that are here, those that were used last first."""
    return sorted([*_bundles(), *_models()], key=lambda each: -each.used)


def named_bundles(name: str) -> list[Bundle]:
    """The bundles of a name that `edge list` shows: of a model that was asked for by it, or that is called so."""
    asked = {record.bundle for record in records() if record.name == name}
    return [bundle for bundle in kept() if bundle.root.name in asked] or called(name)


def size_of(path: Path) -> int:
    """The bytes of a file or of all files in a folder; of links, what they lead to."""
    files = [path] if path.is_file() else path.rglob("*")
    total = 0
    for file in files:
        with contextlib.suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total


def _bundles() -> Iterable[Here]:
    names = {record.bundle: record.name for record in reversed(records()) if record.bundle is not None}
    for bundle in kept():
        manifest = bundle.manifest
        name = names.get(bundle.root.name, manifest.name)
        what = f"{manifest.family}, {manifest.weights}" + DOES.get(manifest.kind, "")
        yield Here(name, BUNDLE, what, sum(bundle.sizes.values()), last_used(bundle.root), bundle.root)


def _models() -> Iterable[Here]:
    found = {entry.name: path for entry in catalog.entries() if (path := catalog.local(entry)) is not None}
    found |= {record.name: Path(record.path) for record in records() if record.name not in found}
    for name, path in found.items():
        with contextlib.suppress(OSError):
            what = "folder" if path.is_dir() else "GGUF file"
            if not path.is_relative_to(cache_dir()):
                what += " in the hub's cache"
            yield Here(name, MODEL, what, size_of(path), path.stat().st_mtime, path)
