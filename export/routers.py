"""The routers of a tuned model on their way into its bundle."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edge.bundle import BundleWriter
from edge.export.checkpoint.base import Checkpoint
from edge.export.tune.result import ROUTERS, read_routers
from edge.manifest import Manifest

FILE = "routers.npy"


def check_routers(checkpoint: Checkpoint) -> None:
    """Raises CheckpointError where the checkpoint's folder holds routers that are of another model."""
    _read(checkpoint)


def write_routers(
    writer: BundleWriter,
    manifest: Manifest,
    checkpoint: Checkpoint,
    segments: int | str | None,
    say: Callable[[str], None],
) -> Manifest:
    """Write the checkpoint's routers where it has some and the bundle's segments are the units they decide on."""
    found = _read(checkpoint)
    if found is None:
        return manifest
    routers, unit = found
    if segments != unit:
        say(f"The routers of {checkpoint.name} are left out: they need segments of {unit} layers (--segments {unit}).")
        return manifest
    file = io.BytesIO()
    np.save(file, routers, allow_pickle=False)
    writer.write_file(FILE, file.getvalue())
    return dataclasses.replace(manifest, routers=FILE)


def _read(checkpoint: Checkpoint) -> Any:
    root: Path | None = getattr(checkpoint, "root", None)  # a directory's
    if root is None or not (root / ROUTERS).is_file():
        return None
    return read_routers(root, int(checkpoint.config["num_hidden_layers"]), int(checkpoint.config["hidden_size"]))
