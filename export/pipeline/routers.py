"""The routers of a tuned model on their way into its bundle."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge.bundle import BundleWriter, sha256_of
from edge.errors import CheckpointError
from edge.export.facts.checkpoint import Checkpoint
from edge.manifest import Manifest

FILE = "routers.npy"

# Files of a tuned model's directory.
ROUTERS = "routers.safetensors"
ABOUT = "tuning.json"
KEY = "routers"  # the tensor [units, H + 1] in ROUTERS
OF = "weights_sha256"  # in its metadata: of the weights that it was fitted to
WEIGHTS = "model.safetensors"


Routers = tuple[NDArray[np.float32], int]
"""Weights and biases [units, H + 1], and how many layers a unit has."""


def read_routers(checkpoint: Checkpoint) -> Routers | None:
    """The routers in the directory of a tuned model; None of a checkpoint that has none.

    Raises:
        CheckpointError: they cannot be read, or are of another model.
    """
    root: Path | None = getattr(checkpoint, "root", None)  # a directory's
    if root is None or not (path := root / ROUTERS).is_file():
        return None
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            routers, fitted_to = np.asarray(file.get_tensor(KEY)), (file.metadata() or {}).get(OF)
        unit = int(json.loads((root / ABOUT).read_text(encoding="utf-8"))["unit"])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as e:
        raise CheckpointError(f"{path} and {ABOUT} next to it cannot be read as routers ({e}); tune again.") from None
    layers, hidden_size = int(checkpoint.config["num_hidden_layers"]), int(checkpoint.config["hidden_size"])
    shape = (len(range(1, layers - 1, unit)) if unit > 0 else 0, hidden_size + 1)
    if routers.shape != shape or routers.dtype != np.float32:
        raise CheckpointError(
            f"{path} holds routers of another model: {routers.dtype} of shape {routers.shape}, not float32 of {shape}."
        )
    weights = root / WEIGHTS
    if fitted_to is not None and weights.is_file() and sha256_of(weights) != fitted_to:
        raise CheckpointError(
            f"{path} holds routers of another model: they were fitted to other weights than {weights} holds."
        )
    return routers, unit


def write_routers(
    writer: BundleWriter,
    manifest: Manifest,
    found: Routers | None,
    segments: int | str | None,
    say: Callable[[str], None],
) -> Manifest:
    """Write a checkpoint's routers where it has some and the bundle's segments are the units they decide on."""
    if found is None:
        return manifest
    routers, unit = found
    if segments != unit:
        name = manifest.source.name
        say(f"The routers of {name} are left out: they need segments of {unit} layers (--segments {unit}).")
        return manifest
    file = io.BytesIO()
    np.save(file, routers, allow_pickle=False)
    writer.write_file(FILE, file.getvalue())
    return dataclasses.replace(manifest, routers=FILE)
