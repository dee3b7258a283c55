"""A model on the Hugging Face hub, by its id: `org/name` or `org/name@revision`."""

from __future__ import annotations

import re

from edge import fetch
from edge.export.checkpoint.directory import DirectoryCheckpoint

ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")


def open_hub(source: str) -> DirectoryCheckpoint:
    """Fetch the model's directory into the hub library's cache and open it.

    Raises:
        CatalogError: the hub cannot be reached or does not give the model.
        CheckpointError: what it gave cannot be read.
    """
    match = ID.fullmatch(source)
    assert match, source
    root = fetch.snapshot(match["repo"], match["revision"])
    return DirectoryCheckpoint(root, name=source, kind="hub")
