"""Readers of weights: a model directory, a .gguf file, or a name (see `edge.names`)."""

from __future__ import annotations

import os
from pathlib import Path

from edge import names
from edge.catalog import Progress, Say
from edge.errors import CheckpointError
from edge.export.facts.checkpoint import Checkpoint
from edge.home import expanded
from edge.onnx_model import is_onnx_model
from edge.registry import Registry

FORMATS = Registry(__name__, "format of checkpoints")  # see `facts.checkpoint`


def open_checkpoint(
    source: str, *, progress: Progress | None = None, say: Say | None = None, without: str = "", floats: bool = False
) -> Checkpoint:
    """Open what `source` names: a path that exists, else a catalog name, a model on the hub or an address; fetched
    where needed.

    progress: told of fetching. say: of that, and of what a person should know of the files. without: the name of a
    format that it may not have. floats: see `edge.fetch.pull`.

    Raises:
        CheckpointError: nothing of that name, or it cannot be read.
        CatalogError: it cannot be fetched, or its terms were not accepted.
    """
    path = expanded(source)
    if os.path.exists(path):  # noqa: PTH110 - of any name: Path's raises where one is too long
        return _open_path(path, say, without)
    if (named := names.find(source)) is not None:
        local = named.fetch(progress, say, floats=floats)
        return _open_path(local, say, without, name=named.titled(local), kind=named.kind, licence=named.licence)
    near = names.similar(source)
    raise CheckpointError(
        f"There is no model {source!r}: no such directory or .gguf file, no such name in the catalog (see edge "
        f"models), and it is no hub id of the form org/name.{f' Did you mean {near}?' if near else ''}"
    )


def _open_path(path: Path, say: Say | None, without: str, **about: str | None) -> Checkpoint:
    """Open the file or folder at `path` with the format whose mark it has, else with the one that needs no mark.

    about: name, kind and licence, if they are known.
    """
    reads = "onnx" if is_onnx_model(path) else "folder" if path.is_dir() else "file"
    fitting = [
        form
        for form in FORMATS.values()
        if form.traits["reads"] == reads and form.name != without and (path / form.traits.get("mark", "")).exists()
    ]
    checkpoint: Checkpoint = max(fitting, key=lambda form: "mark" in form.traits).load().open_path(path, **about)
    checkpoint.path = path
    if say is not None:
        for note in checkpoint.notes:
            say(note)
    return checkpoint
